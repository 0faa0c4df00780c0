//! gristmill
fn main() {}
