//! A second agent, built on the public traits alone: it drafts an answer, criticizes it, and revises it.
//!
//! Nothing in guard knows this agent. It brings event types of its own (`draft_completed`, `critique_completed`), and
//! ends with `final_result` like every agent. The model is scripted, so that the example needs no key and no network:
//!
//! ```text
//! cargo run --example reflect_and_revise
//! ```
#![allow(clippy::print_stdout, reason = "an example shows something")]

use std::sync::Arc;

use futures_util::stream;
use guard::work::research::{
    Agent, AgentContext, AgentError, AgentUpdate, BackendEvent, BackendStream, FinalResult, LlmBackend,
    LlmCall, LlmClient, LlmConfig, LlmRequest, LlmUsage, ResultMetadata, UpdateStream, next_update,
    update_stream,
};
use serde_json::json;

/// Drafts an answer, and revises it until the critic has no objection.
pub(crate) struct ReflectAndRevise {
    /// The maximum number of revisions.
    pub(crate) max_revisions: usize,
}

impl Agent for ReflectAndRevise {
    fn name(&self) -> &str {
        "reflect_and_revise"
    }

    fn description(&self) -> &str {
        "Drafts an answer, criticizes it, and revises it until the critic is content."
    }

    fn execute(&self, query: &str, context: AgentContext) -> UpdateStream {
        let (query, most) = (query.to_string(), self.max_revisions);
        update_stream(move |updates| async move {
            let ask = async |phase, instruction: &str, prompt: String| {
                let request = LlmRequest::new(prompt).with_system_instruction(instruction);
                context.llm.generate(request).await.map_err(|source| AgentError::Llm { phase, source })
            };
            let mut draft = ask("draft", "Answer the question.", query.clone()).await?.text;
            updates
                .send(AgentUpdate::new("draft_completed", "Draft completed", json!({ "draft": draft })))
                .await;
            for revision in 1..=most {
                let prompt = format!("Question: {query}\nAnswer: {draft}");
                let critique = ask("critique", "Criticize the answer, or say OK.", prompt).await?.text;
                let is_content = critique.trim() == "OK";
                let data = json!({ "revision": revision, "critique": critique, "is_content": is_content });
                updates.send(AgentUpdate::new("critique_completed", "Critique completed", data)).await;
                if is_content {
                    break;
                }
                let prompt = format!("Question: {query}\nAnswer: {draft}\nCritique: {critique}");
                draft = ask("revision", "Revise the answer.", prompt).await?.text;
            }
            let total_tokens = u32::try_from(context.llm.budget().used().tokens).unwrap_or(u32::MAX);
            let metadata = ResultMetadata { total_tokens, ..ResultMetadata::default() };
            updates.send(AgentUpdate::final_result(&FinalResult::new(draft, metadata))).await;
            Ok(())
        })
    }
}

/// A model with fixed answers for this example.
struct ScriptedModel;

impl LlmBackend for ScriptedModel {
    fn start(&self, call: LlmCall) -> BackendStream {
        let text = match call.system_instruction.as_deref() {
            Some("Answer the question.") => "Water boils at 100 degrees.",
            Some("Revise the answer.") => "Water boils at 100 °C at sea level.",
            _ if call.prompt.contains("°C") => "OK",
            _ => "Which scale, and where?",
        };
        let completed = BackendEvent::Completed { text: text.to_string(), interaction_id: None };
        Box::pin(stream::iter([Ok(BackendEvent::Used(LlmUsage::tokens(10))), Ok(completed)]))
    }
}

/// Runs the agent on the scripted model and returns its updates.
pub(crate) fn run() -> Result<Vec<AgentUpdate>, AgentError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(|error| AgentError::InvalidInput { problem: error.to_string() })?;
    runtime.block_on(async {
        let llm = Arc::new(LlmClient::new(Arc::new(ScriptedModel), LlmConfig::default()));
        let agent: Box<dyn Agent> = Box::new(ReflectAndRevise { max_revisions: 3 });
        let mut stream = agent.execute("When does water boil?", AgentContext::new(llm));
        let mut updates = Vec::new();
        while let Some(update) = next_update(&mut stream).await {
            updates.push(update?);
        }
        Ok(updates)
    })
}

/// Prints every update.
#[allow(dead_code, reason = "a test calls `run` instead")]
fn main() -> Result<(), AgentError> {
    for update in run()? {
        println!("{}: {} {}", update.event_type, update.message, update.data);
    }
    Ok(())
}
