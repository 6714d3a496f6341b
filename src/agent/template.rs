//! How a request to an agent is best written: a template for callers, and the rules that go with it.
//!
//! Callers see both where they look for help: in the description of the tool, in the server's instructions, as a prompt of the
//! Model Context Protocol and by `guard exec --template`.

/// What callers should know about contracts and about agents that nobody watches.
pub const RULES: &str = "Engineering context is the caller's to give: nothing is looked up. Paste the contract (ai/contracts/current.md), the \
    principles (ai/engineering_codex.md) and the project's context (ai/PROJECT_CONTEXT.md) into the prompt where the project has them. The \
    agent takes them as important context, proposes nothing that plainly violates the contract, and may say that the contract is flawed \
    and suggest returning to the decision stage. Nobody can be asked while it works: with insufficient information it takes the smallest, \
    safest option, never widens the scope without stating the risk, and marks each Assumption.";

/// A language the template is written in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Language {
    /// English.
    #[default]
    English,
    /// Chinese.
    Chinese,
}

/// What a caller fills in. What is left empty is shown as a place to fill.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestText {
    /// Contract, principles, project context.
    pub context: String,
    /// Advice, review, or execute.
    pub task_type: String,
    /// What the agent should know.
    pub background: String,
    /// Questions or tasks, numbered.
    pub tasks: String,
    /// What should come back.
    pub expected_output: String,
}

impl RequestText {
    /// The request in this language.
    pub fn written_in(&self, language: Language) -> String {
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
        // What is filled in is not looked at again: it may have braces of its own.
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
        let english = RequestText::default().written_in(Language::English);
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
        let chinese = RequestText::default().written_in(Language::Chinese);
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
        let written = text.written_in(Language::English);
        assert!(
            written.contains("fn main() { {tasks} }") && written.matches("1. Why?").count() == 1,
            "{written}"
        );
    }
}
