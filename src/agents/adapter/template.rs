//! The recommended form of a request to an agent: a template for callers, and the rules for using it.
//!
//! Callers see both in the description of the MCP tool, in the MCP server's instructions, as an MCP prompt,
//! and in the output of `guard exec --template`.

/// Rules for callers, part of the MCP tool description: which context to pass, and how an unattended agent behaves.
pub const RULES: &str = "The caller must provide the engineering context; guard looks nothing up. Paste the contract (ai/contracts/current.md), the \
    principles (ai/engineering_codex.md) and the project's context (ai/PROJECT_CONTEXT.md) into the prompt where the project has them. The \
    agent treats them as important context, proposes nothing that plainly violates the contract, and may say that the contract is flawed \
    and suggest returning to the decision stage. The agent cannot ask questions while it works: with insufficient information it takes the \
    smallest, safest option, never widens the scope without stating the risk, and marks each Assumption.";

/// The language of the template for requests to an agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Language {
    #[default]
    English,
    Chinese,
}

/// The texts that a caller fills into the template for requests to an agent. For an empty field, the template shows a
/// placeholder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestText {
    /// The contract, engineering principles and project context.
    pub context: String,
    /// The type of task: `advice`, `review` or `execute`.
    pub task_type: String,
    pub background: String,
    /// The questions or tasks, numbered.
    pub tasks: String,
    pub expected_output: String,
}

impl RequestText {
    pub fn render(&self, language: Language) -> String {
        let (template, types) = match language {
            Language::English => (include_str!("templates/request.en.md"), "[advice / review / execute]"),
            Language::Chinese => (include_str!("templates/request.zh.md"), "[咨询 / 审核 / 执行]"),
        };
        let fill = |name: &str| {
            let (value, empty) = match name {
                "context" => (&self.context, "…"),
                "task_type" => (&self.task_type, types),
                "background" => (&self.background, "…"),
                "tasks" => (&self.tasks, "1. …\n2. …"),
                "expected_output" => (&self.expected_output, "…"),
                _ => return None,
            };
            Some(if value.trim().is_empty() { empty } else { value.as_str() })
        };
        let mut out = String::new();
        let mut rest = template;
        // Do not look for placeholders in text that was filled in: it may contain braces of its own.
        while let Some((before, after)) = rest.split_once('{') {
            let (name, tail) = after.split_once('}').unwrap_or((after, ""));
            out.push_str(before);
            out.push_str(fill(name).unwrap_or_default());
            rest = tail;
        }
        out + rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_there_in_both_languages() {
        let english = RequestText::default().render(Language::English);
        for part in [
            "Engineering context",
            "[advice / review / execute]",
            "Background",
            "1. …",
            "Expected output",
            "Assumption",
        ] {
            assert!(english.contains(part), "{part}: {english}");
        }
        let chinese = RequestText::default().render(Language::Chinese);
        for part in [
            "【工程上下文】（如存在）",
            "**任务类型**：[咨询 / 审核 / 执行]",
            "**背景信息**",
            "**具体问题 / 任务**",
            "**期望输出**",
            "Assumption",
        ] {
            assert!(chinese.contains(part), "{part}: {chinese}");
        }
        assert!(!english.contains('{') && !chinese.contains('{'));
    }

    #[test]
    fn what_is_filled_in_stays_as_it_is() {
        let text = RequestText {
            context: "fn main() { {tasks} }".into(),
            tasks: "1. Why?".into(),
            ..RequestText::default()
        };
        let written = text.render(Language::English);
        assert!(
            written.contains("fn main() { {tasks} }") && written.matches("1. Why?").count() == 1,
            "{written}"
        );
    }
}
