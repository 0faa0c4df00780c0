//! 64-byte aligned host memory that goes back to a pool when its owner drops it, wherever that happens.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    collections::HashMap,
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError, Weak},
};

/// Alignment of every buffer, in bytes: a cache line, and what vector instructions like best.
pub const ALIGNMENT: usize = 64;

/// Uniquely owned, writable, initialised memory. Dropping it returns it to the pool it came from.
pub struct HostBuffer {
    memory: Memory,
    length: usize,
    pool: Weak<Shelves>,
}

/// One allocation.
struct Memory {
    pointer: NonNull<u8>,
    capacity: usize,
}

// SAFETY: `Memory` owns its allocation alone, as a `Box<[u8]>` does.
unsafe impl Send for Memory {}
// SAFETY: a shared `Memory` gives no access to its bytes but through `HostBuffer`'s borrows.
unsafe impl Sync for Memory {}

impl Memory {
    /// Layout of `capacity` bytes; `None` when it is more than an allocation can be.
    fn layout(capacity: usize) -> Option<Layout> {
        Layout::from_size_align(capacity, ALIGNMENT).ok()
    }

    fn zeroed(capacity: usize) -> Self {
        let capacity = capacity.max(ALIGNMENT);
        let Some(layout) = Self::layout(capacity) else {
            handle_alloc_error(Layout::new::<u8>());
        };
        // SAFETY: the layout's size is not 0.
        let pointer = unsafe { alloc_zeroed(layout) };
        match NonNull::new(pointer) {
            Some(pointer) => Self { pointer, capacity },
            None => handle_alloc_error(layout),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.capacity == 0 {
            return; // what a buffer leaves behind when its memory goes back to the pool
        }
        if let Some(layout) = Self::layout(self.capacity) {
            // SAFETY: it was allocated with this layout and is freed once, here.
            unsafe { dealloc(self.pointer.as_ptr(), layout) };
        }
    }
}

impl HostBuffer {
    /// A buffer of `length` zero bytes that belongs to no pool.
    #[must_use]
    pub fn zeroed(length: usize) -> Self {
        Self { memory: Memory::zeroed(length), length, pool: Weak::new() }
    }

    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.length
    }

    /// Its first byte. Valid for reads and writes of [`HostBuffer::len_bytes`] bytes until the buffer is dropped;
    /// moving the buffer does not move the bytes.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.memory.pointer.as_ptr()
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory is initialised (zeroed when allocated), `length` is at most its capacity, and `&self`
        // keeps it from being written.
        unsafe { std::slice::from_raw_parts(self.memory.pointer.as_ptr(), self.length) }
    }

    /// The bytes, writable.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `&mut self` is the only borrow.
        unsafe { std::slice::from_raw_parts_mut(self.memory.pointer.as_ptr(), self.length) }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        if let Some(shelves) = self.pool.upgrade() {
            let memory = std::mem::replace(&mut self.memory, Memory { pointer: NonNull::dangling(), capacity: 0 });
            shelves.put(memory);
        }
    }
}

impl std::fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostBuffer").field("len_bytes", &self.length).finish_non_exhaustive()
    }
}

/// Free memory by capacity.
struct Shelves {
    limit: usize,
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    bytes: usize,
    by_capacity: HashMap<usize, Vec<Memory>>,
}

impl Shelves {
    fn take(&self, capacity: usize) -> Option<Memory> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = free.by_capacity.get_mut(&capacity)?.pop()?;
        free.bytes -= capacity;
        Some(memory)
    }

    fn put(&self, memory: Memory) {
        if memory.capacity == 0 {
            return;
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.bytes + memory.capacity <= self.limit {
            free.bytes += memory.capacity;
            free.by_capacity.entry(memory.capacity).or_default().push(memory);
        }
    }
}

/// A pool of [`HostBuffer`]s. Clones share it; buffers outlive it.
#[derive(Clone)]
pub struct BufferPool(Arc<Shelves>);

impl BufferPool {
    /// A pool that keeps at most `limit` free bytes; what comes back beyond that is freed.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Shelves { limit, free: Mutex::default() }))
    }

    /// A buffer of `length` bytes, whose content is whatever its last owner left (zeros when it is new).
    #[must_use]
    pub fn take(&self, length: usize) -> HostBuffer {
        let capacity = capacity_of(length);
        let memory = self.0.take(capacity).unwrap_or_else(|| Memory::zeroed(capacity));
        HostBuffer { memory, length, pool: Arc::downgrade(&self.0) }
    }

    /// Free bytes that the pool holds.
    #[must_use]
    pub fn free_bytes(&self) -> usize {
        self.0.free.lock().unwrap_or_else(PoisonError::into_inner).bytes
    }
}

impl std::fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BufferPool").field("limit", &self.0.limit).field("free", &self.free_bytes()).finish()
    }
}

/// Capacities are multiples of a sixteenth of the next power of two: at most an eighth is wasted, and batches of
/// slightly different sizes share buffers.
fn capacity_of(length: usize) -> usize {
    let step = (length.checked_next_power_of_two().unwrap_or(length) / 16).max(ALIGNMENT);
    length.max(1).checked_next_multiple_of(step).unwrap_or(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_and_is_used_again() {
        let pool = BufferPool::new(1 << 20);
        let mut buffer = pool.take(1000);
        assert!(buffer.as_slice().iter().all(|b| *b == 0));
        buffer.as_mut_slice().fill(7);
        let pointer = buffer.as_mut_ptr();
        assert_eq!(pointer as usize % ALIGNMENT, 0);
        assert_eq!(pool.free_bytes(), 0);
        std::thread::spawn(move || drop(buffer)).join().unwrap();
        assert_eq!(pool.free_bytes(), capacity_of(1000));
        let mut again = pool.take(990);
        assert_eq!((again.as_mut_ptr(), again.len_bytes()), (pointer, 990));
    }

    #[test]
    fn a_pool_keeps_no_more_than_its_limit_and_buffers_outlive_it() {
        let pool = BufferPool::new(1500);
        let buffers: Vec<HostBuffer> = (0..4).map(|_| pool.take(1024)).collect();
        drop(buffers);
        assert_eq!(pool.free_bytes(), 1024);
        let mut orphan = pool.take(64);
        drop(pool);
        orphan.as_mut_slice()[63] = 1;
        drop(orphan);
        drop(HostBuffer::zeroed(0));
    }

    #[test]
    fn capacities_waste_an_eighth_at_most() {
        for length in (1..100_000).step_by(37) {
            let capacity = capacity_of(length);
            assert!(capacity >= length && capacity - length < (length / 8 + 1).max(ALIGNMENT), "{length} {capacity}");
        }
    }
}
