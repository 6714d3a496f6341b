//! Descriptors that guard was started with are not the run's.

use super::{Place, Report, User, configurations, python, tools};

#[test]
fn descriptors_are_not_inherited() {
    let Some(python) = python() else { return };
    let run = |place: &Place, program: Vec<String>| {
        let file = place.file(&place.home.join("file"), "original");
        let mut command = place.command(python);
        command.arg("-B").arg(tools().join("descriptors.py")).arg("give").arg(&file).arg(&place.home);
        let report = Report::of(&command.args(program).output().unwrap());
        let changed =
            std::fs::read_to_string(&file).unwrap() != "original" || place.home.join("new").exists();
        (changed, report)
    };
    let probe = || {
        vec![
            python.to_string(),
            "-B".into(),
            tools().join("descriptors.py").display().to_string(),
            "use".into(),
        ]
    };
    for user in User::available() {
        let place = Place::new(user);
        let (changed, report) = run(&place, probe());
        assert!(changed, "bare: {report:?}");
    }
    for configuration in configurations() {
        let place = Place::new(configuration.user);
        let guard = place.guard(configuration, &[]);
        let mut program = vec![guard.get_program().to_str().unwrap().to_string()];
        program.extend(guard.get_args().map(|word| word.to_str().unwrap().to_string()));
        program.extend(probe());
        let (changed, report) = run(&place, program);
        assert!(!changed, "{configuration:?}: {report:?}");
        assert_eq!(report.value(), &serde_json::json!([]), "{configuration:?}: {report:?}");
    }
}
