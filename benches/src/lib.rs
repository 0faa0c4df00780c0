//! gristmill
