//! Bad queries and bad raw files.

use std::{path::Path, sync::Arc};

use arrow::{
    array::{ArrayRef, Int64Array, ListArray, RecordBatch},
    datatypes::Int64Type,
};
use parquet::arrow::ArrowWriter;

use crate::{
    expect_error::{bad, check},
    pipeline::numbers_csv,
};

#[test]
fn queries_that_are_not_row_wise_or_name_no_column_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("n.csv"), numbers_csv()).unwrap();
    let query =
        |sql, says: &[&'static str], help| bad("ingest n.csv --out clean --sql", 2, "usage", says, help).arg(sql);
    check(
        dir.path(),
        &[
            query("SELECT numbr FROM input", &["numbr"], "number"),
            query("SELECT number FROM inptu", &["inptu"], "input"),
            query("SELECT SUM(number) FROM input", &["sum()"], "row"),
            query("SELECT class, COUNT(*) FROM input GROUP BY class", &["GROUP BY"], "row"),
            query("SELECT a.number FROM input a JOIN input b ON a.number = b.number", &["JOIN"], "input"),
            query("SELECT DISTINCT class FROM input", &["DISTINCT"], "help: "),
            query("SELECT * FROM input LIMIT 5", &["LIMIT"], "help: "),
            query("SELECT ROW_NUMBER() OVER (ORDER BY number) AS n FROM input", &["OVER"], "help: "),
            query("SELEC number FROM input", &["SELEC", "Line: 1, Column: 1"], "SELECT"),
            query("DROP TABLE input", &["one SELECT statement"], "SELECT"),
            query("SELECT number AS _row_id FROM input", &["_row_id"], "help: "),
        ],
    );
}

#[test]
fn settings_of_an_ingest_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("n.csv"), numbers_csv()).unwrap();
    std::fs::write(dir.path().join("s.toml"), "[[columns]]\nname = \"number\"\ntyp = \"int64\"\n").unwrap();
    std::fs::write(dir.path().join("t.toml"), "[[columns]]\nname = \"number\"\ntype = \"int46\"\n").unwrap();
    std::fs::write(dir.path().join("u.toml"), "[[columns]]\nname = \"nummer\"\ntype = \"int64\"\n").unwrap();
    check(
        dir.path(),
        &[
            bad("ingest n.csv --out clean --on-error rejct", 2, "usage", &["rejct"], "reject"),
            bad("ingest n.csv --out clean --max-rejects 101%", 2, "usage", &["101%"], "5%"),
            bad("ingest n.csv --out clean --role label", 2, "usage", &["label"], "late=label"),
            bad("ingest n.csv --out clean --role label=lable", 2, "usage", &["lable"], "label"),
            bad("ingest n.csv --out clean --role labl=label", 2, "usage", &["labl"], "label"),
            bad("ingest n.csv --out clean --schema s.toml", 2, "usage", &["s.toml", "typ"], "type"),
            bad("ingest n.csv --out clean --schema t.toml", 2, "usage", &["t.toml", "int46"], "int64"),
            bad("ingest n.csv --out clean --schema u.toml", 2, "usage", &["nummer"], "number"),
            bad("ingest n.csv --out clean --schema missing.toml", 2, "not_found", &["missing.toml"], "help: "),
            bad("ingest n.csv --out clean --delimiter", 2, "usage", &["delimiter"], "help: ").arg("é"),
            bad("ingest n.csv/deeper.csv --out clean", 2, "not_found", &["deeper.csv"], "help: "),
        ],
    );
    assert!(!dir.path().join("clean/_gristmill").exists(), "nothing was published");
}

#[test]
fn bad_raw_files_are_named_with_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
    let good = numbers_csv();
    write("good.csv", good.as_bytes());
    write("ragged.csv", format!("{good}1,true,c1\n").as_bytes());
    write("dirty.csv", format!("{good}{}", "1,true\n".repeat(30)).as_bytes());
    write("empty.csv", b"");
    write("header.csv", b"number,label\n");
    write("twice.csv", b"number,number\n1,2\n");
    write("reserved.csv", b"_row_id,x\n1,2\n");
    let mut utf16 = vec![0xff, 0xfe];
    utf16.extend(good.encode_utf16().flat_map(u16::to_le_bytes));
    write("utf16.csv", &utf16);
    write("torn.parquet", b"PAR1 this is not Parquet PAR1");
    nested(&dir.path().join("nested.parquet"));
    let mut torn = std::fs::read(dir.path().join("nested.parquet")).unwrap();
    torn.truncate(torn.len() - 5);
    write("cut.parquet", &torn);
    check(
        dir.path(),
        &[
            bad(
                "ingest ragged.csv --out clean --on-error fail",
                1,
                "data",
                &["ragged.csv:402", "3 fields", "4"],
                "help: ",
            ),
            bad("ingest dirty.csv --out clean", 1, "data", &["30", "430"], "--max-rejects"),
            bad("ingest dirty.csv --out clean --max-rejects 29", 1, "data", &["30"], "--max-rejects"),
            bad("ingest empty.csv --out clean", 1, "data", &["empty.csv"], "help: "),
            bad("ingest header.csv --out clean", 1, "data", &["no row is left of 0"], "help: "),
            bad("ingest twice.csv --out clean", 2, "usage", &["twice.csv", "number"], "help: "),
            bad("ingest reserved.csv --out clean", 2, "usage", &["reserved.csv", "_row_id"], "help: "),
            bad("ingest utf16.csv --out clean", 1, "data", &["utf16.csv", "UTF-16"], "utf-8"),
            bad("ingest nested.parquet --out clean", 2, "usage", &["nested.parquet", "inner"], "help: "),
            bad("ingest torn.parquet --out clean", 1, "corrupt", &["torn.parquet"], "torn.parquet"),
            bad("ingest cut.parquet --out clean", 1, "corrupt", &["cut.parquet"], "cut.parquet"),
            bad("ingest good.csv nested.parquet --out clean", 2, "usage", &["nested.parquet", "number"], "help: "),
        ],
    );
    assert!(!dir.path().join("clean/_gristmill/manifest-00000001.json").exists(), "nothing was published");
}

/// A Parquet file with a column of lists, `inner`.
fn nested(path: &Path) {
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1), Some(2)]), None]);
    let n: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
    let batch = RecordBatch::try_from_iter([("n", n), ("inner", Arc::new(lists) as ArrayRef)]).unwrap();
    let mut writer = ArrowWriter::try_new(std::fs::File::create(path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}
