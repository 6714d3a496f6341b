# Every entry point of the project. `just` lists them; each is a script or a cargo command that works without just.

_list:
    @just --list --unsorted

# install what the tests need
setup:
    scripts/setup

# check everything, as CI does
test:
    scripts/test

# format, lints and all tests but the slow ones
fast:
    scripts/test --fast

# the tests whose names contain FILTER, such as `egress::`
only FILTER:
    cargo test --test guard -- {{FILTER}}

# benchmarks, with their targets
bench *ARGUMENTS:
    cargo bench {{ARGUMENTS}}

# fuzz each parser
fuzz SECONDS="600":
    scripts/fuzz {{SECONDS}}

# schemas, reference pages, the recording of the demo, and snapshots
regenerate:
    scripts/regenerate

# recordings of journeys at a terminal, into docs/recordings
record *JOURNEYS: release
    scripts/record target/release/guard {{JOURNEYS}}

# a scenario that takes too long for the tests; without a name, a list
show *ARGUMENTS: release
    scripts/show {{ARGUMENTS}}

# licences and sources of the dependencies
deny:
    scripts/deny

# the boundaries of a run on an older kernel, in QEMU
qemu *ARGUMENTS:
    scripts/qemu-kernel {{ARGUMENTS}}

# build from source
release:
    cargo build --release
