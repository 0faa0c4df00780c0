//! Large objects in parts, and which writer an object is of.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use futures::TryStreamExt as _;
use object_store::{
    Attribute, Attributes, GetOptions, MultipartUpload, ObjectStore, PutMultipartOptions, PutPayload, UploadPart,
    path::Path as ObjectPath,
};

/// Objects of more bytes are sent in parts.
pub(super) const PARTS_ABOVE: usize = 32 << 20;
/// Bytes of a part, unless there would be more than [`MOST_PARTS`]. S3 wants 5 MiB at least.
const PART_BYTES: usize = 16 << 20;
/// S3's limit.
const MOST_PARTS: usize = 10_000;
/// Parts of one object under way at once.
const PARTS_AT_ONCE: usize = 8;

/// User metadata that names the writer. Letters only: stores differ in what else a name may have.
const WRITER: &str = "gristmillwriter";

/// A name that no other write has, of whatever process on whatever machine. It reaches no result.
pub(super) fn unique() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    // Its keys come from the operating system's random numbers.
    let random = RandomState::new();
    format!("{:016x}{:016x}", random.hash_one((0_u8, count)), random.hash_one((1_u8, count, std::process::id())))
}

/// Attributes of an object that `writer` writes.
pub(super) fn written_by(writer: &str) -> Attributes {
    [(Attribute::Metadata(WRITER.into()), writer.to_owned())].into_iter().collect()
}

/// What is at a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    /// An object, and its writer when it was written here and the store keeps metadata.
    Object(Option<String>),
}

/// Asks for the writer of `object`.
pub(super) async fn find(store: &dyn ObjectStore, object: &ObjectPath) -> object_store::Result<Found> {
    match store.get_opts(object, GetOptions { head: true, ..GetOptions::default() }).await {
        Ok(result) => {
            let writer = result.attributes.get(&Attribute::Metadata(WRITER.into()));
            Ok(Found::Object(writer.map(|w| w.to_string())))
        }
        Err(object_store::Error::NotFound { .. }) => Ok(Found::Nothing),
        Err(e) => Err(e),
    }
}

/// Puts `bytes` as `object` in parts, several at once. Readers see nothing of it before all of it is there; what was sent
/// of one that failed is given back.
pub(super) async fn put_in_parts(
    store: &dyn ObjectStore,
    object: &ObjectPath,
    bytes: &Bytes,
) -> object_store::Result<()> {
    let writer = unique();
    let options = PutMultipartOptions { attributes: written_by(&writer), ..PutMultipartOptions::default() };
    let mut upload = store.put_multipart_opts(object, options).await?;
    let Err(error) = send(upload.as_mut(), bytes).await else { return Ok(()) };
    // When the answer to the last request was lost, the store knows no such upload any more, but the object.
    if find(store, object).await.is_ok_and(|found| found == Found::Object(Some(writer))) {
        return Ok(());
    }
    if let Err(abort) = upload.abort().await {
        tracing::debug!("the parts of {object} stay until the store's own rules remove them: {abort}");
    }
    Err(error)
}

async fn send(upload: &mut dyn MultipartUpload, bytes: &Bytes) -> object_store::Result<()> {
    let part_bytes = part_bytes(bytes.len());
    let parts: Vec<UploadPart> = (0..bytes.len())
        .step_by(part_bytes)
        .map(|from| {
            let part = bytes.slice(from..bytes.len().min(from.saturating_add(part_bytes)));
            upload.put_part(PutPayload::from_bytes(part))
        })
        .collect();
    futures::stream::iter(parts.into_iter().map(Ok)).try_for_each_concurrent(PARTS_AT_ONCE, |part| part).await?;
    upload.complete().await.map(drop)
}

fn part_bytes(bytes: usize) -> usize {
    PART_BYTES.max(bytes.div_ceil(MOST_PARTS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_neither_too_small_nor_too_many() {
        for bytes in [PARTS_ABOVE + 1, 70 << 20, 160 << 30, (160 << 30) + 1, 5 << 40] {
            assert!(part_bytes(bytes) >= 5 << 20);
            assert!(bytes.div_ceil(part_bytes(bytes)) <= MOST_PARTS, "{bytes}");
        }
    }

    #[test]
    fn no_two_writers_have_a_name() {
        let names: std::collections::BTreeSet<String> = (0..1000).map(|_| unique()).collect();
        assert_eq!(names.len(), 1000);
        assert!(names.iter().all(|name| name.len() == 32));
    }

    #[tokio::test]
    async fn parts_make_the_object_and_name_its_writer() {
        let store = object_store::memory::InMemory::new();
        let object = ObjectPath::from("a");
        assert_eq!(find(&store, &object).await.unwrap(), Found::Nothing);
        let bytes = Bytes::from((0..PARTS_ABOVE + 7).map(|i| (i % 251) as u8).collect::<Vec<_>>());
        put_in_parts(&store, &object, &bytes).await.unwrap();
        assert!(matches!(find(&store, &object).await.unwrap(), Found::Object(Some(_))));
        let got = object_store::ObjectStoreExt::get(&store, &object).await.unwrap().bytes().await.unwrap();
        assert!(got == bytes);
    }
}
