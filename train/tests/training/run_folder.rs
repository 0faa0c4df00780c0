//! The run folder: what is done is not done again, what is another run's is not touched, what is broken is passed over.

use gristmill_train::{TrainOutcome, report::TrainReport};

use crate::synthetic::{Scenario, config, run};

fn scenario(dir: &tempfile::TempDir, rest: serde_json::Value) -> Scenario {
    Scenario::new(dir.path(), config(rest))
}

fn every_step() -> serde_json::Value {
    serde_json::json!({"checkpoint": {"url": "unused", "every_steps": 1, "keep": 3}})
}

#[test]
fn a_finished_run_is_current_and_its_report_adds_up() {
    let dir = tempfile::tempdir().unwrap();
    let job = scenario(&dir, serde_json::json!({"epochs": 12}));
    let TrainOutcome::Finished(report) = run(&job, None).unwrap() else { panic!("it was not done before") };
    assert_eq!((report.steps, report.epochs, report.history.len()), (84, 12, 24));
    let test = report.test.unwrap();
    assert_eq!(test.rows, 41);
    let names: Vec<&str> = report.baselines.iter().map(|b| b.name.as_str()).collect();
    assert_eq!(names, ["majority", "rate by c"]);
    for baseline in &report.baselines {
        assert!(test.auc.unwrap() > baseline.scores.auc.unwrap(), "{baseline:?} {test:?}");
    }
    let first = &report.history[0];
    let last = &report.history[22];
    assert!(last.split == "train" && last.scores.loss < first.scores.loss - 0.05, "it learns");
    assert_eq!(report.speed.samples, 12 * 97);
    let stored: TrainReport = serde_json::from_slice(&std::fs::read(job.run.join("report.json")).unwrap()).unwrap();
    assert_eq!(stored, report);
    assert_eq!(run(&job, None).unwrap(), TrainOutcome::AlreadyCurrent(report.clone()));

    // Another baseline is another report of the same model: no step is done again.
    let mut other = job.clone();
    other.config.baseline = None;
    let TrainOutcome::Finished(again) = run(&other, None).unwrap() else { panic!("the report differs") };
    assert_eq!((again.speed.steps, again.model_digest), (0, report.model_digest));

    // A damaged model is made anew.
    let model = std::fs::read_dir(job.run.join("model")).unwrap().map(|e| e.unwrap().path());
    let model = model.into_iter().find(|p| p.extension().is_some_and(|e| e == "safetensors")).unwrap();
    let good = std::fs::read(&model).unwrap();
    std::fs::write(&model, b"broken").unwrap();
    assert!(matches!(run(&other, None).unwrap(), TrainOutcome::Finished(_)));
    assert_eq!(std::fs::read(&model).unwrap(), good);
}

#[test]
fn another_runs_folder_is_refused_naming_the_settings() {
    let dir = tempfile::tempdir().unwrap();
    run(&scenario(&dir, serde_json::json!({})), None).unwrap();
    let error = run(&scenario(&dir, serde_json::json!({"seed": 5})), None).unwrap_err();
    assert_eq!(error.kind(), gristmill_shard::ErrorKind::Conflict);
    assert!(error.to_string().contains("differ in seed"), "{error}");
    let mut other = scenario(&dir, serde_json::json!({}));
    other.rows = 50;
    let error = run(&other, None).unwrap_err();
    assert!(error.to_string().contains("manifest differs"), "{error}");
    // What does not change the parameters may change.
    run(&scenario(&dir, serde_json::json!({"timeout_s": 7})), None).unwrap();
}

#[test]
fn old_checkpoints_go_and_broken_ones_are_passed_over() {
    let whole = tempfile::tempdir().unwrap();
    run(&scenario(&whole, every_step()), None).unwrap();
    let whole = scenario(&whole, every_step());
    assert_eq!(whole.checkpoints(), [12, 13, 14]);

    for damage in ["flip", "cut", "remove", "manifest", "partial"] {
        let dir = tempfile::tempdir().unwrap();
        let mut job = scenario(&dir, every_step());
        job.stop_after = Some(10);
        assert!(run(&job, None).is_err());
        job.stop_after = None;
        assert_eq!(job.checkpoints(), [8, 9, 10]);
        let newest = job.run.join("checkpoints/step-000000000010");
        let file = |start: &str| {
            let mut entries = std::fs::read_dir(&newest).unwrap().map(|e| e.unwrap().path());
            entries.find(|p| p.file_name().unwrap().to_str().unwrap().starts_with(start)).unwrap()
        };
        match damage {
            "flip" => {
                let mut bytes = std::fs::read(file("parameters")).unwrap();
                let at = bytes.len() - 3;
                bytes[at] ^= 1;
                std::fs::write(file("parameters"), bytes).unwrap();
            }
            "cut" => std::fs::write(file("optimizer"), b"half").unwrap(),
            "remove" => std::fs::remove_file(file("log")).unwrap(),
            "manifest" => std::fs::write(file("manifest"), b"{\"format_version\": 1").unwrap(),
            _ => std::fs::remove_file(file("manifest")).unwrap(),
        }
        run(&job, None).unwrap();
        for start in ["parameters", "optimizer", "log", "manifest"] {
            assert!(whole.checkpoint_file(14, start) == job.checkpoint_file(14, start), "{start} after {damage}");
        }
        assert_eq!(job.checkpoints(), [12, 13, 14], "debris is gone after {damage}");
    }
}

#[test]
fn a_checkpoint_of_another_format_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = scenario(&dir, every_step());
    job.stop_after = Some(3);
    assert!(run(&job, None).is_err());
    let path = job.run.join("checkpoints/step-000000000003/manifest.json");
    let text = std::fs::read_to_string(&path).unwrap().replace("\"format_version\": 1", "\"format_version\": 9");
    std::fs::write(&path, text).unwrap();
    let error = run(&job, None).unwrap_err();
    assert!(error.to_string().contains("format version 9"), "{error}");
}

#[test]
fn a_loss_that_is_no_number_ends_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let optimizer = serde_json::json!({"lr": 1e200});
    let schedule = serde_json::json!({});
    let job = scenario(&dir, serde_json::json!({"optimizer": optimizer, "schedule": schedule}));
    let error = run(&job, None).unwrap_err();
    assert_eq!(error.kind(), gristmill_shard::ErrorKind::Data);
    assert!(error.to_string().contains("lower optimizer.lr"), "{error}");
}
