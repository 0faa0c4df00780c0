//! Sharding record batches that a program makes, without a data set of their own.

use arrow::{array::RecordBatch, datatypes::SchemaRef, error::ArrowError};
use futures::{Stream, StreamExt};

use super::{ShardOptions, ShardOutcome, shard};
use crate::{
    control::{Control, Unit, compute},
    error::{Error, Result},
    manifest::META,
    parquet_reader::to_waist_types,
    parquet_writer::{decoded_bytes, encode_file},
    schema::is_reserved,
    storage::Storage,
};

/// Where the batches wait until they are sharded; removed with the job's work.
const STAGED: &str = "work/stream";
/// Decoded bytes of a staged file.
const STAGED_BYTES: u64 = 64 << 20;

/// Shards the rows of `batches`, all of `schema`, into `out`.
///
/// Assignment needs two looks at the rows, so they are first staged as Parquet below `out` (about their compressed size),
/// at most 64 MiB of them in memory. Row ids are in the order in which they come. The same batches give the same shards.
///
/// # Errors
/// [`Error::Arrow`] for a batch that is an error or of another schema, and those of [`shard`].
///
/// # Examples
/// ```
/// use std::sync::Arc;
///
/// use arrow::{
///     array::{Int64Array, RecordBatch, StringArray},
///     datatypes::{DataType, Field, Schema},
/// };
/// use gristmill_shard::{
///     Control, ShardSet, Storage,
///     job::{ShardOptions, shard_batches},
/// };
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let schema = Arc::new(Schema::new(vec![
///     Field::new("pixels", DataType::Int64, false),
///     Field::new("label", DataType::Utf8, false),
/// ]));
/// let batches = (0..10).map(|b| {
///     let pixels = Int64Array::from_iter_values(b * 100..(b + 1) * 100);
///     let label = StringArray::from_iter_values((0..100).map(|i| if i % 7 == 0 { "cat" } else { "dog" }));
///     RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(pixels), Arc::new(label)])
/// });
/// let out = Storage::memory();
/// let options = ShardOptions { nodes: 3, stratify: vec!["label".into()], ..ShardOptions::default() };
/// shard_batches(futures::stream::iter(batches), &schema, &out, &options, &Control::default()).await?;
///
/// let set = ShardSet::open(&out).await?;
/// assert_eq!(set.manifest().rows, 1000);
/// let nodes = &set.manifest().balance.as_ref().unwrap().splits[0].nodes;
/// assert!(nodes.exact && nodes.worst_deviation < 1.0);
/// # Ok(())
/// # })
/// # }
/// ```
pub async fn shard_batches<S>(
    batches: S,
    schema: &SchemaRef,
    out: &Storage,
    options: &ShardOptions,
    control: &Control,
) -> Result<ShardOutcome>
where
    S: Stream<Item = Result<RecordBatch, ArrowError>> + Send,
{
    if let Some(field) = schema.fields().iter().find(|f| is_reserved(f.name())) {
        return Err(Error::usage(
            format!("column \"{}\" starts with \"_\", which is reserved", field.name()),
            "give it another name",
        ));
    }
    let folder = format!("{META}/{STAGED}");
    out.delete_prefix(&folder).await?;
    let staged = out.join(&folder);
    control.progress.start("stage rows", 0, Unit::Rows);
    let mut batches = std::pin::pin!(batches);
    let (mut waiting, mut bytes, mut file) = (Vec::new(), 0, 0_u32);
    let fail = |source| Error::Arrow { action: "take a batch of the stream".into(), source };
    while let Some(batch) = batches.next().await {
        control.stop.check()?;
        let batch = batch.map_err(fail)?;
        if batch.schema().fields() != schema.fields() {
            let (is, want) = (batch.schema(), schema);
            return Err(fail(ArrowError::SchemaError(format!("it has columns {is}, not {want}"))));
        }
        let batch = to_waist_types(&batch, "the stream")?;
        control.progress.advance(batch.num_rows() as u64);
        bytes += decoded_bytes(&batch);
        waiting.push(batch);
        if bytes >= STAGED_BYTES {
            stage(&staged, &mut file, std::mem::take(&mut waiting), schema).await?;
            bytes = 0;
        }
    }
    if !waiting.is_empty() || file == 0 {
        stage(&staged, &mut file, waiting, schema).await?;
    }
    control.progress.finish();
    shard(&staged, out, options, control).await
}

async fn stage(staged: &Storage, file: &mut u32, batches: Vec<RecordBatch>, schema: &SchemaRef) -> Result<()> {
    let path = format!("part-{file:06}.parquet");
    let name = staged.url(&path);
    let empty = to_waist_types(&RecordBatch::new_empty(std::sync::Arc::clone(schema)), "the stream")?.schema();
    let encoded = compute(move || encode_file(&name, &empty, &batches)).await?;
    *file += 1;
    staged.put(&path, encoded.bytes).await
}
