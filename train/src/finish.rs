//! The end of a run: scores on the test split, baselines, the model as a file of its own, the report.

use crate::{
    baseline::{ValueCounts, baselines},
    batch::Columns,
    checkpoint::to_safetensors,
    error::Result,
    evaluate::{count_values, evaluate, sum_counts},
    model::{Model, parameter_count},
    report::{REPORT_VERSION, TrainReport},
    trainer::{Job, State, named},
};

/// Scores, exports and reports a trained model; every rank gets the report.
///
/// # Errors
/// Those of sources, ranks and storage.
pub(crate) fn finish_run(job: &Job<'_>, model: &dyn Model, state: &State, config_digest: &str) -> Result<TrainReport> {
    let (config, ranks, sources) = (job.config, job.ranks, job.sources);
    let features = sources.features();
    let (mut test, mut compared) = (None, Vec::new());
    if let (_, Some(split)) = sources.evaluation_splits() {
        let codes = features.baseline.as_ref().map_or(1, |b| b.values.len() + 1);
        let mut counts = ValueCounts::new(codes);
        let mut source = sources.scan(&split, Columns::ModelAndBaseline, ranks.world())?;
        test = evaluate(model, source.as_mut(), ranks, job.control, &split, Some(&mut counts))?;
        drop(source);
        let counts = sum_counts(&counts, ranks)?;
        let mut source = sources.scan(&config.data.train, Columns::Baseline, ranks.world())?;
        let train = count_values(source.as_mut(), ranks, codes)?;
        compared = baselines(&train, &counts, features.baseline.as_ref().map(|b| b.column.as_str()));
    }
    ranks.on_first("publishing the report", || {
        let description = serde_json::json!({
            "format_version": REPORT_VERSION,
            "config_digest": config_digest,
            "steps": state.step,
            "model": config.model,
            "features": features,
        });
        let file = job.folder.publish_model(to_safetensors(&named(model))?, &description)?;
        let report = TrainReport {
            format_version: REPORT_VERSION,
            steps: state.step,
            epochs: state.epoch,
            world_size: ranks.size() as u64,
            parameters: parameter_count(model),
            history: state.history.clone(),
            test,
            baselines: compared.clone(),
            speed: state.speed,
            model: job.folder.model_url(),
            model_digest: file.blake3.clone(),
        };
        job.folder.finish(&report, file, config_digest, &config.report_digest())?;
        Ok(report)
    })
}
