//! What every storage keeps, whatever is behind it.

use bytes::Bytes;
use gristmill_shard::{Error, ErrorKind, Storage};
use tokio::task::JoinSet;

/// The whole contract but for races and large objects.
///
/// # Panics
/// Where `storage`, which is to be empty, does not keep it.
pub async fn keeps_the_contract(storage: &Storage) {
    storage.prove_put_if_absent().await.unwrap();
    assert!(storage.list("").await.unwrap().is_empty(), "the proof leaves nothing");

    assert_eq!(storage.size("a/b").await.unwrap(), None);
    assert!(matches!(storage.get("a/b").await, Err(Error::NotFound { .. })));
    assert!(matches!(storage.get_range("a/b", 0..1).await, Err(Error::NotFound { .. })));
    assert!(storage.put_if_absent("a/b", "one").await.unwrap());
    assert!(!storage.put_if_absent("a/b", "two").await.unwrap());
    assert!(!storage.put_if_absent("a/b", "one").await.unwrap(), "the same bytes make no winner either");
    assert_eq!(storage.get("a/b").await.unwrap(), "one");
    storage.put("a/b", "three").await.unwrap();
    assert_eq!(storage.get("a/b").await.unwrap(), "three");
    storage.put("a/c", "x").await.unwrap();
    storage.put("a/d/e", "").await.unwrap();
    storage.put("ab", "beside the folder, not in it").await.unwrap();

    assert_eq!(storage.get_range("a/b", 1..3).await.unwrap(), "hr");
    assert_eq!(storage.get_range("a/b", 0..5).await.unwrap(), "three");
    assert_eq!(storage.get_range("a/b", 2..2).await.unwrap(), "");
    for past in [3..99, 5..6, 99..100] {
        let error = storage.get_range("a/b", past.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{past:?}: {error}");
    }
    assert_eq!(storage.size("a/b").await.unwrap(), Some(5));
    assert_eq!((storage.size("a/d/e").await.unwrap(), storage.get("a/d/e").await.unwrap()), (Some(0), Bytes::new()));

    assert_eq!(paths(storage, "a").await, ["a/b", "a/c", "a/d/e"]);
    let joined = storage.join("a");
    assert_eq!(joined.get("c").await.unwrap(), "x");
    assert_eq!(paths(&joined, "").await, ["b", "c", "d/e"]);
    assert_eq!(paths(&joined, "d").await, ["d/e"]);
    assert!(storage.list("nowhere").await.unwrap().is_empty());

    let names = ["odd/a b", "odd/a+b", "odd/a=b&c", "odd/größe", "odd/percent%41", "odd/~!@$(,)'"];
    for name in names {
        storage.put(name, name.to_owned()).await.unwrap();
    }
    for name in names {
        assert_eq!(storage.get(name).await.unwrap(), name);
        assert_eq!(storage.size(name).await.unwrap(), Some(name.len() as u64), "{name}");
    }
    let mut sorted = names.map(str::to_owned);
    sorted.sort();
    assert_eq!(paths(storage, "odd").await, sorted);

    storage.delete("a/b").await.unwrap();
    storage.delete("a/b").await.unwrap();
    assert_eq!(storage.size("a/b").await.unwrap(), None);
    assert!(storage.put_if_absent("a/b", "again").await.unwrap());
    storage.delete_prefix("a").await.unwrap();
    storage.delete_prefix("a").await.unwrap();
    storage.delete_prefix("odd").await.unwrap();
    assert_eq!(paths(storage, "").await, ["ab"]);
    storage.delete("ab").await.unwrap();
}

async fn paths(storage: &Storage, prefix: &str) -> Vec<String> {
    storage.list(prefix).await.unwrap().into_iter().map(|listed| listed.path).collect()
}

/// Races `writers` for one object, `rounds` times: one is told that it was first, and its bytes are there.
///
/// # Panics
/// When there is another number of winners than one.
pub async fn one_of_many_wins(storage: &Storage, writers: usize, rounds: usize) {
    for round in 0..rounds {
        let path = format!("race/{round}");
        let mut race = JoinSet::new();
        for writer in 0..writers {
            let (storage, path) = (storage.clone(), path.clone());
            // Every other pair writes the same bytes: who won can't be told from what is there.
            let text = format!("writer {}", writer / 2);
            race.spawn(async move { storage.put_if_absent(&path, text.clone()).await.map(|won| (text, won)) });
        }
        let ended: Vec<(String, bool)> = race.join_all().await.into_iter().map(Result::unwrap).collect();
        let winners: Vec<&String> = ended.iter().filter(|(_, won)| *won).map(|(text, _)| text).collect();
        assert_eq!(winners.len(), 1, "round {round}: {ended:?}");
        assert_eq!(storage.get(&path).await.unwrap(), **winners[0]);
    }
    storage.delete_prefix("race").await.unwrap();
}

/// Bytes that no two places of have alike.
#[must_use]
pub fn pattern(bytes: usize) -> Bytes {
    let mut text = Vec::with_capacity(bytes + 8);
    let mut word = 0_u64;
    while text.len() < bytes {
        word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
        text.extend_from_slice(&(word ^ (word >> 29)).to_le_bytes());
    }
    text.truncate(bytes);
    Bytes::from(text)
}

/// Puts a large object over a small one, and reads it whole and by a range across parts.
///
/// # Panics
/// When what comes back is not what was put.
pub async fn a_large_object_comes_back(storage: &Storage, bytes: usize) {
    let written = pattern(bytes);
    storage.put("large", "small").await.unwrap();
    storage.put("large", written.clone()).await.unwrap();
    assert_eq!(storage.size("large").await.unwrap(), Some(bytes as u64));
    // Not assert_eq: it would print them.
    assert!(storage.get("large").await.unwrap() == written, "the object is another");
    let middle = bytes / 2 - 1_000_000..bytes / 2 + 1_000_000;
    let range = middle.start as u64..middle.end as u64;
    assert!(storage.get_range("large", range).await.unwrap() == written[middle], "the range is another");
    storage.delete("large").await.unwrap();
}
