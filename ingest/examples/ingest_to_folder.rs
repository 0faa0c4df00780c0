//! Ingests local files into a folder and says what became of every row:
//!
//!     cargo run --release -p gristmill-ingest --example ingest_to_folder -- OUT 'SELECT … FROM input' SOURCE…
//!
//! An empty query keeps all columns.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use gristmill_ingest::{IngestOptions, ingest};
use gristmill_shard::{Control, Error, Storage, StorageOptions};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let (Some(out), Some(sql)) = (arguments.next(), arguments.next()) else {
        return Err(Error::usage("too few arguments", "ingest_to_folder OUT SQL SOURCE…"));
    };
    let options = IngestOptions { sql: (!sql.is_empty()).then_some(sql), ..IngestOptions::new(arguments.collect()) };
    let start = std::time::Instant::now();
    let outcome =
        Box::pin(ingest(&options, &Storage::open(&out, &StorageOptions::new())?, &Control::default())).await?;
    let seconds = start.elapsed().as_secs_f64();
    for column in &outcome.report.columns {
        println!(
            "{} {} {} nullable={}: {}",
            column.stage, column.name, column.column_type, column.nullable, column.evidence
        );
    }
    for file in &outcome.report.files {
        println!("{}: {:?}", file.name, file.counts);
    }
    for reject in &outcome.report.rejects.examples {
        println!("{reject}");
    }
    let bytes: u64 = outcome.report.files.iter().map(|f| f.bytes).sum();
    let rows = outcome.report.counts.rows_in as f64;
    println!(
        "{:?} already current: {}\n{seconds:.2} s, {:.0} rows/s, {:.1} MB/s",
        outcome.report.counts,
        outcome.already_current,
        rows / seconds,
        bytes as f64 / 1e6 / seconds
    );
    Ok(())
}
