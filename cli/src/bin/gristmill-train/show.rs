//! The report of a training run as people read it.

use gristmill_cli::tables;
use gristmill_train::TrainReport;

/// Tables of scores, speed, and where the model is.
pub fn text(report: &TrainReport, already_current: bool) -> String {
    let mut text = String::new();
    if already_current {
        text.push_str("the model is already current: nothing was done\n");
    }
    let number = |x: f64| format!("{x:.4}");
    let auc = |x: Option<f64>| x.map_or_else(|| "-".into(), number);
    let rows = report.history.iter().map(|e| {
        vec![
            (e.epoch + 1).to_string(),
            e.split.clone(),
            tables::count(e.scores.rows),
            number(e.scores.loss),
            number(e.scores.accuracy),
            auc(e.scores.auc),
        ]
    });
    text.push_str(&tables::table(&["epoch", "split", "rows", "loss", "accuracy", "AUC"], 2, rows));
    if let Some(test) = &report.test {
        let model = ("the model", test);
        let all = report.baselines.iter().map(|b| (b.name.as_str(), &b.scores)).chain([model]);
        let rows = all.map(|(name, s)| {
            vec![name.to_owned(), tables::count(s.rows), number(s.loss), number(s.accuracy), auc(s.auc)]
        });
        text.push_str(&tables::table(&["on the test split", "rows", "loss", "accuracy", "AUC"], 1, rows));
    }
    let speed = &report.speed;
    text.push_str(&format!(
        "{} steps, {} ranks, {} parameters; {} samples/s, {} of step time waiting for data\nmodel: {}\n",
        tables::count(report.steps),
        report.world_size,
        tables::count(report.parameters),
        tables::count(speed.samples_per_second() as u64),
        tables::percent(speed.wait_share()),
        report.model,
    ));
    text
}
