//! Puts one object: `put-object URL PATH BYTES`. Tests kill it meanwhile.

use std::process::ExitCode;

use gristmill_shard::{Storage, StorageOptions};
use testkit::storage_contract::pattern;

#[expect(clippy::print_stderr, reason = "a program")]
fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, path, bytes] = args.as_slice() else {
        eprintln!("usage: put-object URL PATH BYTES");
        return ExitCode::from(2);
    };
    let Ok(bytes) = bytes.parse() else {
        eprintln!("{bytes} is no number of bytes");
        return ExitCode::from(2);
    };
    let put = || -> Result<(), Box<dyn std::error::Error>> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let storage = Storage::open(url, &StorageOptions::new())?;
        Ok(runtime.block_on(storage.put(path, pattern(bytes)))?)
    };
    match put() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
