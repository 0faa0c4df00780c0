//! A window of a lane that is in use: its order and its row groups.

use std::{
    ops::Range,
    sync::{Arc, OnceLock},
};

use crate::{
    block_cache::Pin,
    error::Result,
    order::{LaneOrder, WindowOrder},
    records::Records,
};

/// A window whose row groups are pinned. They stay so until the last clone of its `Arc` is gone.
pub(crate) struct Window {
    lane_order: Arc<LaneOrder>,
    index: u64,
    /// Made by the first thread that collates from it.
    order: OnceLock<WindowOrder>,
    pins: Vec<Pin>,
    records: OnceLock<Vec<Arc<Records>>>,
}

impl Window {
    /// `pins` are those of the window's blocks, in their order.
    pub(crate) fn new(lane_order: Arc<LaneOrder>, index: u64, pins: Vec<Pin>) -> Self {
        Self { lane_order, index, order: OnceLock::new(), pins, records: OnceLock::new() }
    }

    /// Waits until all its row groups are in memory.
    ///
    /// # Errors
    /// The first failure among them.
    pub(crate) async fn ready(&self) -> Result<()> {
        if self.records.get().is_none() {
            let mut records = Vec::with_capacity(self.pins.len());
            for pin in &self.pins {
                records.push(pin.records().await?);
            }
            // Another task may have set it meanwhile, to the same.
            let _ = self.records.set(records);
        }
        Ok(())
    }

    pub(crate) fn order(&self) -> &WindowOrder {
        self.order.get_or_init(|| self.lane_order.window(self.index))
    }

    /// Row groups in the order of [`WindowOrder::blocks`]; empty before [`Window::ready`].
    pub(crate) fn records(&self) -> &[Arc<Records>] {
        self.records.get().map_or(&[], Vec::as_slice)
    }
}

/// Samples of a batch that come from one window.
#[derive(Clone)]
pub(crate) struct Part {
    pub(crate) window: Arc<Window>,
    pub(crate) ordinals: Range<u64>,
}

impl Part {
    pub(crate) fn rows(&self) -> u64 {
        self.ordinals.end - self.ordinals.start
    }
}

/// Samples `rows` (counted over `parts`) as parts of their own.
pub(crate) fn cut(parts: &[Part], rows: Range<u64>) -> Vec<Part> {
    let mut at = 0;
    let mut taken = Vec::new();
    for part in parts {
        let (start, end) = (rows.start.max(at), rows.end.min(at + part.rows()));
        if start < end {
            let first = part.ordinals.start + (start - at);
            taken.push(Part { window: Arc::clone(&part.window), ordinals: first..first + (end - start) });
        }
        at += part.rows();
    }
    taken
}
