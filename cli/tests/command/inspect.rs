//! What `inspect` and `shard` tell of a set.

use std::{
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use parquet::arrow::ArrowWriter;

use crate::pipeline::{run, text};

/// A data set of words by users of very different sizes, 0 to 999.
fn people(folder: &Path) -> PathBuf {
    let (csv, clean) = (folder.join("people.csv"), folder.join("people"));
    let mut rows = "number,user,class,words\n".to_owned();
    for i in 0..1000 {
        let user = if i % 9 < 3 { 0 } else { 1 + i * 7919 % 53 };
        rows.push_str(&format!("{i},u{user},c{},{}\n", i * i % 5, 10 + 20_000 / (20 + i * 37 % 1_009)));
    }
    std::fs::write(&csv, rows).unwrap();
    let _ = run(&["ingest", text(&csv), "--out", text(&clean), "--quiet"]).success();
    clean
}

/// A file of plain Parquet with numbers and a class.
fn part(path: &Path, numbers: Range<i64>) {
    let number: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers.clone()));
    let class: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers.map(|i| i * i % 5)));
    let batch = RecordBatch::try_from_iter([("number", number), ("class", class)]).unwrap();
    let mut writer = ArrowWriter::try_new(std::fs::File::create(path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    let _ = writer.close().unwrap();
}

#[test]
fn groups_and_weights_are_told_beside_their_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let (clean, shards) = (people(dir.path()), dir.path().join("shards"));
    let options = ["--stratify", "class", "--group", "user", "--balance", "words", "--split", "train=0.7,test=0.3"];
    let command = [&["shard", text(&clean), "--out", text(&shards), "--nodes", "3", "--quiet"], &options[..]].concat();
    let made = run(&command).success().stdout;
    let told = run(&["inspect", text(&shards)]).success().stdout;
    let json = run(&["inspect", text(&shards), "--json"]).success().stdout;
    let manifest: serde_json::Value = serde_json::from_str(&json).unwrap();
    let balance = &manifest["balance"];
    let page = std::fs::read_to_string(shards.join("_gristmill/report.html")).unwrap();

    let groups = &balance["groups"];
    let figure = |name: &str| format!("{:.4}", groups[name].as_f64().unwrap());
    let of_class =
        format!("of a stratum {} rows (at least {})", figure("class_deviation"), figure("class_lower_bound"));
    let of_size = format!("of a size {} (at least {})", figure("size_deviation"), figure("size_lower_bound"));
    for said in [&made, &told] {
        assert!(said.contains("54 groups of user, each on one split"), "{said}");
        assert!(said.contains(&of_class) && said.contains(&of_size), "{of_class}\n{of_size}\n{said}");
        assert!(said.contains("spread of words") && said.contains("lower bound") && said.contains("drift"), "{said}");
        assert!(said.contains(&format!("report: {}/_gristmill/report.html", shards.display())), "{said}");
        assert!(!said.contains("left out") && !said.contains("versions"), "{said}");
    }
    for split in balance["splits"].as_array().unwrap() {
        let drift = format!("{:.4}", split["drift"].as_f64().unwrap());
        let line = told.lines().find(|l| l.contains(split["name"].as_str().unwrap()) && l.contains(" %"));
        assert!(line.is_some_and(|l| l.contains(&drift)), "{drift}\n{told}");
    }
    assert!(told.contains("worst at node"), "{told}");
    assert!(
        page.contains("<h2>Groups</h2>")
            && page.contains("<h2>Weights</h2>")
            && page.contains(&figure("class_deviation"))
    );
}

#[test]
fn copies_and_versions_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let plain = dir.path().join("plain");
    std::fs::create_dir(&plain).unwrap();
    part(&plain.join("a.parquet"), 0..700);
    let command = |out: &str, more: &[&str]| {
        let out = dir.path().join(out);
        let options = ["--stratify", "class", "--nodes", "3", "--quiet"];
        run(&[&["shard", text(&plain), "--out", text(&out)], &options[..], more].concat()).success().stdout
    };
    let told = command("resampled", &["--resample", "class=balanced", "--resample-total", "over"]);
    assert!(told.contains("left out") && told.contains("copies"), "{told}");
    let told = command("shards", &[]);
    assert!(!told.contains("left out") && !told.contains("versions"), "{told}");
    part(&plain.join("b.parquet"), 700..1000);
    let _ = command("shards", &["--append"]);
    let told = run(&["inspect", text(&dir.path().join("shards"))]).success().stdout;
    assert!(told.contains("over 2 versions a stratum deviates"), "{told}");
}
