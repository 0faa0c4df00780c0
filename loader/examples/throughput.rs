//! Measures the loader alone: `cargo run --release -p gristmill-loader --example throughput -- [SHARDS] [EPOCHS]`.
//!
//! Without SHARDS it makes 3,000,000 rows like the flights of the demo in a temporary folder and shards them there.

use std::{path::Path, sync::Arc};

use arrow::{
    array::{ArrayRef, BooleanArray, Int32Array, LargeStringArray},
    record_batch::RecordBatch,
};
use gristmill_loader::{BatchSpec, DType, DataLoader, LoaderOptions, PlanOptions, measure::measure};
use gristmill_shard::{
    Control, ShardSet, Storage, StorageOptions,
    job::{ShardOptions, shard},
    keys::{Domain, Key},
    parquet_writer::encode_file,
};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const ROWS: u64 = 3_000_000;

fn flights(from: u64, to: u64) -> Result<RecordBatch, Failure> {
    let mut rng = Key::derive(Domain::Draw, 0, &[from]).rng();
    let mut numbers = |bound: u64| -> ArrayRef {
        Arc::new((from..to).map(|_| Some(rng.below(bound) as i32)).collect::<Int32Array>())
    };
    let (distance, hour, weekday, month) = (numbers(2800), numbers(24), numbers(7), numbers(12));
    let mut airports = |_: &str| -> ArrayRef {
        Arc::new((from..to).map(|_| Some(format!("A{:02}", rng.below(300)))).collect::<LargeStringArray>())
    };
    let (origin, destination) = (airports("origin"), airports("destination"));
    let late: ArrayRef = Arc::new((from..to).map(|_| Some(rng.below(5) == 0)).collect::<BooleanArray>());
    Ok(RecordBatch::try_from_iter([
        ("distance", distance),
        ("hour", hour),
        ("weekday", weekday),
        ("month", month),
        ("origin", origin),
        ("destination", destination),
        ("late", late),
    ])?)
}

async fn make(folder: &Path) -> Result<ShardSet, Failure> {
    let none = StorageOptions::new();
    let open = |name: &str| Storage::open(&folder.join(name).to_string_lossy(), &none);
    let (input, out) = (open("rows")?, open("shards")?);
    for (part, from) in (0..ROWS).step_by(500_000).enumerate() {
        let batch = flights(from, (from + 500_000).min(ROWS))?;
        let file = encode_file("rows", &batch.schema(), std::slice::from_ref(&batch))?;
        input.put(&format!("part-{part}.parquet"), file.bytes).await?;
    }
    let options = ShardOptions { stratify: vec!["late".into()], nodes: 2, ..ShardOptions::default() };
    shard(&input, &out, &options, &Control::default()).await?;
    Ok(ShardSet::open(&out).await?)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let folder = tempfile::tempdir()?;
    let shards = match arguments.next() {
        Some(url) => ShardSet::open(&Storage::open(&url, &StorageOptions::new())?).await?,
        None => make(folder.path()).await?,
    };
    let epochs = arguments.next().map_or(Ok(5), |n| n.parse())?;
    let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    let categories = names(&["hour", "weekday", "month", "origin", "destination"]);
    let batch =
        BatchSpec::tabular_of(&shards, "train", &names(&["distance"]), &categories, Some("late"), DType::F32).await?;
    let mut options = LoaderOptions::new(PlanOptions::new("train", 4096), batch);
    options.threads = std::thread::available_parallelism().map_or(1, usize::from);
    options.prefetch_batches = 8;
    let loader = DataLoader::open(shards, options, tokio::runtime::Handle::current()).await?;
    let measured = measure(&loader, 0..epochs).await?;
    let report = serde_json::to_string_pretty(&measured)?;
    std::io::Write::write_all(&mut std::io::stdout(), format!("{report}\n").as_bytes())?;
    Ok(())
}
