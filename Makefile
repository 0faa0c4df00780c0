# The two commands of the README: make demo, make test. Everything else is plain cargo.
# The build goes where cargo puts it: ./target, or CARGO_TARGET_DIR when that is set.

.PHONY: help demo test bench libtorch data clean-demo
.DEFAULT_GOAL := help

help:
	@echo "make demo        libtorch, sample data, build, then the whole pipeline on 3,000,000 flights"
	@echo "make test        every check and test"
	@echo "make bench       the criterion benches"
	@echo "make libtorch    only fetch libtorch into .libtorch (a LIBTORCH that is set is used instead)"
	@echo "make data        only fetch the sample data into data/"
	@echo "make clean-demo  remove what the demo wrote (runs/), not what it fetched"

libtorch:
	@scripts/libtorch.sh

# Exit status 3 says that the data can't be had; the demo then uses the extract.
data:
	@scripts/sample-data.sh

demo:
	@scripts/prerequisites.sh --for demo
	@scripts/libtorch.sh
	@scripts/sample-data.sh || [ $$? -eq 3 ]
	cargo build --release --workspace
	@scripts/demo.sh

test:
	@scripts/prerequisites.sh --for test
	@scripts/libtorch.sh
	@scripts/test.sh

bench:
	@scripts/libtorch.sh
	cargo bench -p gristmill-benches

clean-demo:
	rm -rf runs
