//! Finds JSON objects in an agent's answer, which may surround them with code fences, filler and examples.

use serde_json::{Map, Value};

/// Maximum number of positions in an answer at which the parser tries to read a JSON object.
const MOST_TRIED: usize = 20_000;

/// Returns every top-level JSON object in the text, in order, each with the offset of its end. Skips nested objects.
/// Stops after about `MOST_TRIED` opening braces.
pub fn json_objects(text: &str) -> Vec<(usize, Map<String, Value>)> {
    let mut found = Vec::new();
    let mut at = 0;
    // Limit the number of tries, because each may read the whole rest of the text: without a limit, a hostile text
    // could take quadratic time.
    let mut tries = 0;
    while let Some(begin) = text[at..].find('{').map(|found| at + found) {
        tries += 1;
        let mut stream = serde_json::Deserializer::from_str(&text[begin..]).into_iter::<Value>();
        match stream.next() {
            Some(Ok(Value::Object(object))) => {
                at = begin + stream.byte_offset().max(1);
                found.push((at, object));
            }
            _ => at = begin + 1,
        }
        if tries > MOST_TRIED {
            break;
        }
    }
    found
}
