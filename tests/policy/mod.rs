mod attacks;
mod built_in;
mod errors;
mod finding;
mod patterns;
mod schema;
