//! Parses the output of `git cat-file --batch`.

/// Calls `each` with the id and the content of every blob in the output of `git cat-file --batch`, in its order. Skips
/// objects that git did not find, and objects of another type.
pub(crate) fn for_each_blob(output: &[u8], mut each: impl FnMut(&str, &[u8])) {
    let mut left = output;
    while let Some(end) = memchr::memchr(b'\n', left) {
        let header = String::from_utf8_lossy(&left[..end]).into_owned();
        left = &left[end + 1..];
        let words: Vec<&str> = header.split(' ').collect();
        if let [id, kind, size] = words.as_slice()
            && let Ok(size) = size.parse::<usize>()
            && let Some(content) = left.get(..size)
        {
            if *kind == "blob" {
                each(id, content);
            }
            left = left.get(size + 1..).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_blobs_are_passed_on() {
        let output = b"a blob 3\nx\ny\nb missing\nc tree 2\nblo\nd blob 0\n\ne blob 9\nshort";
        let mut found = Vec::new();
        for_each_blob(output, |id, content| found.push((id.to_string(), content.to_vec())));
        assert_eq!(found, [("a".to_string(), b"x\ny".to_vec()), ("d".to_string(), Vec::new())]);
    }
}
