//! The supervisor reads the arguments of an exec from the memory of the caller.

use guard::supervisor::fuzzing::arguments;

/// A process passes one long variable many times. All variables together must not exceed the limit, whose error is that
/// of the kernel.
#[test]
fn one_variable_that_is_passed_many_times_counts_each_time() {
    let text = [b"GIT_X=".as_slice(), &[b'x'; 1 << 20], b"\0"].concat();
    let read = |times: usize| {
        let mut pointers = vec![text.as_ptr() as u64; times];
        pointers.push(0);
        arguments(std::process::id() as i32, 0, pointers.as_ptr() as u64, 1 << 20)
    };
    assert_eq!(read(7).unwrap().1.len(), 7);
    assert_eq!(read(9).unwrap_err().raw_os_error(), Some(libc::E2BIG));
}
