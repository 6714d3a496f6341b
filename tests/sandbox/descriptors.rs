// slow
//! A run must not get the file descriptors that guard inherited.

use super::Report;
use crate::support::{SandboxFixture, SandboxUser, probe_directory, sandbox_configurations, system_python};

#[test]
fn descriptors_of_the_caller_are_not_inherited() {
    let Some(python) = system_python() else { return };
    let run = |fixture: &SandboxFixture, program: Vec<String>| {
        let file = fixture.file(&fixture.home.join("file"), "original");
        let mut command = fixture.command(python);
        command
            .arg("-B")
            .arg(probe_directory().join("descriptors.py"))
            .arg("give")
            .arg(&file)
            .arg(&fixture.home);
        let report = Report::of(&command.args(program).output().unwrap());
        let changed =
            std::fs::read_to_string(&file).unwrap() != "original" || fixture.home.join("new").exists();
        (changed, report)
    };
    let probe = || {
        vec![
            python.to_string(),
            "-B".into(),
            probe_directory().join("descriptors.py").display().to_string(),
            "use".into(),
        ]
    };
    for user in SandboxUser::available() {
        let fixture = SandboxFixture::new(user);
        let (changed, report) = run(&fixture, probe());
        assert!(changed, "bare: {report:?}");
    }
    for configuration in sandbox_configurations() {
        let fixture = SandboxFixture::new(configuration.user);
        let guard = fixture.guard(configuration, &[]);
        let mut program = vec![guard.get_program().to_str().unwrap().to_string()];
        program.extend(guard.get_args().map(|word| word.to_str().unwrap().to_string()));
        program.extend(probe());
        let (changed, report) = run(&fixture, program);
        assert!(!changed, "{configuration:?}: {report:?}");
        assert_eq!(report.value(), &serde_json::json!([]), "{configuration:?}: {report:?}");
    }
}
