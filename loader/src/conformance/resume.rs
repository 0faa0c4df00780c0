//! Stops and resumes of an iteration over batches.

use crate::{
    error::{Error, Result},
    loader::DataLoader,
    state::State,
    tensor::HostBatch,
};

/// What a batch was: ids and a digest of all its tensors, and the state after it.
#[derive(Debug, Clone, PartialEq)]
struct Trace {
    epoch: u64,
    micro: u32,
    digest: [u8; 32],
    state: State,
}

fn trace(batch: &HostBatch) -> Trace {
    let mut hasher = blake3::Hasher::new();
    for tensor in batch.tensors() {
        hasher.update(format!("{} {} {:?}\n", tensor.name(), tensor.dtype(), tensor.shape()).as_bytes());
        hasher.update(tensor.bytes());
    }
    Trace {
        epoch: batch.epoch(),
        micro: batch.micro(),
        digest: *hasher.finalize().as_bytes(),
        state: batch.state().clone(),
    }
}

async fn traces(loader: &DataLoader, from: &State, until: u64, stop_after: Option<usize>) -> Result<Vec<Trace>> {
    let mut batches = loader.run(from, until)?;
    let mut traces = Vec::new();
    while stop_after.is_none_or(|n| traces.len() < n) {
        let Some(batch) = batches.next().await? else { break };
        traces.push(trace(&batch));
    }
    Ok(traces)
}

/// Stops after each step of `epoch` in turn, restores the state (through its JSON) in a loader made anew, and requires
/// the rest, byte for byte, of the uninterrupted run through the following epoch. Gives the number of stops. For small
/// data: it reads the epoch once a step.
///
/// # Errors
/// [`Error::Conformance`] at the first difference, and whatever the loaders fail with.
pub async fn check_resume(make: impl AsyncFn() -> Result<DataLoader>, epoch: u64) -> Result<usize> {
    let whole_loader = make().await?;
    let begin = whole_loader.plan().state(epoch, 0)?;
    let until = epoch.saturating_add(2);
    let whole = traces(&whole_loader, &begin, until, None).await?;
    let mut stops = 0;
    let ends: Vec<usize> = (0..whole.len()).filter(|i| whole[*i].epoch == epoch && ends_a_step(&whole, *i)).collect();
    for stop in std::iter::once(None).chain(ends.into_iter().map(Some)) {
        let loader = make().await?;
        let (taken, state) = match stop {
            None => (0, begin.clone()),
            Some(i) => {
                // The state must be right at the moment of the stop, whatever was read ahead by then.
                let before = traces(&loader, &begin, until, Some(i + 1)).await?;
                let Some(last) = before.last() else { continue };
                (i + 1, last.state.clone())
            }
        };
        let state = State::from_json(&state.to_json()?)?;
        let rest = traces(&make().await?, &state, until, None).await?;
        if rest != whole[taken..] {
            let at = rest.iter().zip(&whole[taken..]).take_while(|(a, b)| a == b).count();
            return Err(Error::Conformance {
                what: format!(
                    "resumed after {taken} batches, the rest differs from its batch {at} on ({} batches, {} expected)",
                    rest.len(),
                    whole.len() - taken
                ),
            });
        }
        stops += 1;
    }
    Ok(stops)
}

/// Whether batch `i` is the last micro-batch of its step.
fn ends_a_step(traces: &[Trace], i: usize) -> bool {
    traces.get(i + 1).is_none_or(|next| next.micro == 0)
}
