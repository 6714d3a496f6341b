//! guard for other programs: over HTTP and as an MCP server.

pub mod http;
pub mod mcp;
pub mod serve;
