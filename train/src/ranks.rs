//! This process among its ranks: the collectives that training needs, and the checks that all were started alike.

use std::time::Duration;

use gristmill_c10d::{GlooOptions, PrefixStore, ProcessGroup, ReduceOp, Rendezvous, TcpStore, World};
use tch::{Kind, Tensor};

use crate::error::{During, Error, Result};

/// Key of the store under which a failing rank leaves its reason.
const FAILURE: &str = "failure";
/// What can't be sent in one piece: a sanity limit on what a peer announces.
const MAX_MESSAGE: i64 = 1 << 36;

/// The ranks of a run. It stays on the thread that made it, as [`ProcessGroup`] does.
#[derive(Debug)]
pub struct Ranks {
    group: ProcessGroup,
    store: PrefixStore,
    world: World,
    timeout: Duration,
}

impl Ranks {
    /// Joins the ranks of `rendezvous`, or stands alone. Every operation has the limit `timeout`.
    ///
    /// # Errors
    /// [`Error::Group`] when the others do not come in time.
    pub fn join(rendezvous: Option<&Rendezvous>, timeout: Duration) -> Result<Self> {
        let fail = |source| Error::Group { during: "meeting the other ranks".to_owned(), reported: None, source };
        let (world, store, group) = match rendezvous {
            Some(rendezvous) => {
                let store = rendezvous.store(timeout).map_err(fail)?;
                let group = ProcessGroup::of_run(rendezvous, &store, "train", timeout).map_err(fail)?;
                (rendezvous.world, store, group)
            }
            None => {
                // The same code path as with many ranks, over a store that nobody else knows of.
                let tcp = TcpStore::server("127.0.0.1", 0, 1, timeout).map_err(fail)?;
                let store = PrefixStore::new("single", &tcp).map_err(fail)?;
                let group_store = PrefixStore::new("train", &store).map_err(fail)?;
                let group = ProcessGroup::gloo(&group_store, 0, 1, &GlooOptions::loopback(timeout)).map_err(fail)?;
                (World::single(), store, group)
            }
        };
        Ok(Self { group, store, world, timeout })
    }

    /// This process.
    #[must_use]
    pub fn world(&self) -> World {
        self.world
    }

    /// Ranks in all.
    #[must_use]
    pub fn size(&self) -> usize {
        self.world.world_size
    }

    /// Whether this is rank 0, which writes.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.world.rank == 0
    }

    /// The process group, for the Reducer.
    #[must_use]
    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// Wraps an error of c10d, together with the reason that a failing rank left.
    pub fn failed(&self, during: &str, source: gristmill_c10d::Error) -> Error {
        let reported = if self.size() > 1 && source.is_communication() { self.reported_failure() } else { None };
        Error::Group { during: during.to_owned(), reported, source }
    }

    /// Leaves the reason why this rank ends, so that the others can name it. Best effort: the store may be gone too.
    pub fn report_failure(&self, error: &Error) {
        // An error that only echoes another rank's is no reason.
        if self.size() == 1 || matches!(error, Error::Group { .. } | Error::Reported { .. } | Error::Stopped { .. }) {
            return;
        }
        let message = format!("rank {}: {}", self.world.rank, error.chain());
        if let Err(e) = self.store.set(FAILURE, message.as_bytes()) {
            tracing::debug!("the store did not take the reason of the failure: {e}");
        }
    }

    /// The connection breaks a moment before or after the reason arrives, so this looks a few times. It does not use the
    /// store's own wait, which writes to standard error when nothing comes.
    fn reported_failure(&self) -> Option<String> {
        for _ in 0..10 {
            if self.store.check(&[FAILURE]).ok()? {
                let bytes = self.store.get(FAILURE).ok()?;
                return Some(String::from_utf8_lossy(&bytes).into_owned());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }

    /// Sums `values` over the ranks; every rank gets the sums, rounded alike.
    ///
    /// # Errors
    /// [`Error::Group`].
    pub fn sum_f64(&self, during: &str, values: &[f64]) -> Result<Vec<f64>> {
        let mut tensor = Tensor::f_from_slice(values).during(during)?;
        self.all_reduce(during, &mut tensor)?;
        Vec::<f64>::try_from(&tensor).during(during)
    }

    /// Sums counts over the ranks.
    ///
    /// # Errors
    /// [`Error::Group`].
    pub fn sum_u64(&self, during: &str, values: &[u64]) -> Result<Vec<u64>> {
        let signed: Vec<i64> = values.iter().map(|v| v.cast_signed()).collect();
        let mut tensor = Tensor::f_from_slice(&signed).during(during)?;
        self.all_reduce(during, &mut tensor)?;
        let sums = Vec::<i64>::try_from(&tensor).during(during)?;
        Ok(sums.into_iter().map(i64::cast_unsigned).collect())
    }

    fn all_reduce(&self, during: &str, tensor: &mut Tensor) -> Result<()> {
        if self.size() == 1 || tensor.numel() == 0 {
            return Ok(());
        }
        self.group.all_reduce(tensor, ReduceOp::Sum).map_err(|e| self.failed(during, e))
    }

    /// The bytes of every rank, in the order of the ranks. They may be of different lengths.
    ///
    /// # Errors
    /// [`Error::Group`].
    pub fn gather(&self, during: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        if self.size() == 1 {
            return Ok(vec![bytes.to_vec()]);
        }
        let length = Tensor::f_from_slice(&[bytes.len() as i64]).during(during)?;
        let lengths = self.group.all_gather(&length).map_err(|e| self.failed(during, e))?;
        let lengths = lengths
            .iter()
            .map(|t| t.f_int64_value(&[0]).during(during).and_then(|n| self.message_length(during, n)))
            .collect::<Result<Vec<usize>>>()?;
        let longest = lengths.iter().copied().max().unwrap_or(0);
        if longest == 0 {
            return Ok(vec![Vec::new(); self.size()]);
        }
        let mut padded = bytes.to_vec();
        padded.resize(longest, 0);
        let mine = Tensor::f_from_slice(&padded).during(during)?;
        let all = self.group.all_gather(&mine).map_err(|e| self.failed(during, e))?;
        all.iter()
            .zip(lengths)
            .map(|(tensor, length)| {
                let mut bytes = to_bytes(during, tensor)?;
                bytes.truncate(length);
                Ok(bytes)
            })
            .collect()
    }

    /// The bytes of rank 0; what others pass is ignored.
    ///
    /// # Errors
    /// [`Error::Group`].
    pub fn broadcast(&self, during: &str, bytes: Vec<u8>) -> Result<Vec<u8>> {
        if self.size() == 1 {
            return Ok(bytes);
        }
        let mut length = Tensor::f_from_slice(&[bytes.len() as i64]).during(during)?;
        self.group.broadcast(&mut length, 0).map_err(|e| self.failed(during, e))?;
        let length = self.message_length(during, length.f_int64_value(&[0]).during(during)?)?;
        if length == 0 {
            return Ok(Vec::new());
        }
        let mut buffer = if self.is_first() { bytes } else { vec![0; length] };
        buffer.resize(length, 0);
        let mut tensor = Tensor::f_from_slice(&buffer).during(during)?;
        self.group.broadcast(&mut tensor, 0).map_err(|e| self.failed(during, e))?;
        to_bytes(during, &tensor)
    }

    /// Runs `work` on rank 0 alone; every rank gets its result, or fails with it.
    ///
    /// # Errors
    /// Rank 0 gets the error of `work`, the others [`Error::Reported`].
    pub fn on_first<T>(&self, during: &str, work: impl FnOnce() -> Result<T>) -> Result<T>
    where
        T: serde::Serialize + serde::de::DeserializeOwned,
    {
        let json = |e: serde_json::Error| Error::internal(format!("{during}: {e}"));
        let (result, message) = if self.is_first() {
            let result = work();
            let message = match &result {
                Ok(value) => serde_json::to_vec(&Ok::<_, String>(value)).map_err(json)?,
                Err(e) => serde_json::to_vec(&Err::<(), _>(e.chain())).map_err(json)?,
            };
            (Some(result), message)
        } else {
            (None, Vec::new())
        };
        let message = self.broadcast(during, message)?;
        match result {
            Some(result) => result,
            None => serde_json::from_slice::<Result<T, String>>(&message)
                .map_err(json)?
                .map_err(|message| Error::Reported { rank: 0, message }),
        }
    }

    /// Waits for every rank, and names those that do not come.
    ///
    /// # Errors
    /// [`Error::Group`].
    pub fn barrier(&self, during: &str) -> Result<()> {
        if self.size() == 1 {
            return Ok(());
        }
        self.group.barrier(self.timeout).map_err(|e| self.failed(during, e))
    }

    /// Checks that each named value is the same on every rank.
    ///
    /// # Errors
    /// [`Error::Disagreement`] on every rank alike, naming the first that differs.
    pub fn agree(&self, facts: &[Fact<'_>]) -> Result<()> {
        let during = "comparing the ranks";
        let values: Vec<&str> = facts.iter().map(|f| f.value.as_str()).collect();
        let mine = serde_json::to_vec(&values).map_err(|e| Error::internal(format!("{during}: {e}")))?;
        let all = self
            .gather(during, &mine)?
            .iter()
            .map(|bytes| serde_json::from_slice(bytes).map_err(|e| Error::internal(format!("{during}: {e}"))))
            .collect::<Result<Vec<Vec<String>>>>()?;
        let Some((first, others)) = all.split_first() else { return Ok(()) };
        for (i, fact) in facts.iter().enumerate() {
            for (rank, theirs) in others.iter().enumerate() {
                if theirs.get(i) != first.get(i) {
                    return Err(Error::Disagreement {
                        what: fact.what.to_owned(),
                        rank: rank + 1,
                        first: first.get(i).cloned().unwrap_or_default(),
                        theirs: theirs.get(i).cloned().unwrap_or_default(),
                        help: fact.help.to_owned(),
                    });
                }
            }
        }
        Ok(())
    }

    fn message_length(&self, during: &str, length: i64) -> Result<usize> {
        usize::try_from(length)
            .ok()
            .filter(|_| length <= MAX_MESSAGE)
            .ok_or_else(|| Error::internal(format!("{during}: a rank announced {length} bytes")))
    }
}

/// Something that must be the same on every rank.
#[derive(Debug, Clone)]
pub struct Fact<'a> {
    /// What it is, as an error would name it.
    pub what: &'a str,
    /// Its value here.
    pub value: String,
    /// What to do when it differs.
    pub help: &'a str,
}

/// The elements of a tensor of bytes.
fn to_bytes(during: &str, tensor: &Tensor) -> Result<Vec<u8>> {
    debug_assert_eq!(tensor.kind(), Kind::Uint8);
    let n = tensor.numel();
    let mut bytes = vec![0; n];
    tensor.f_copy_data_u8(&mut bytes, n).during(during)?;
    Ok(bytes)
}
