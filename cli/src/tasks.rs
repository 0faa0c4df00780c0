//! `--task`: which part of a job this process does first, as given or as the scheduler's environment says.

use gristmill_shard::job::Task;

use crate::failure::Failure;

const HELP: &str = "write --task 0/8 to --task 7/8, --task auto under a SLURM array or srun, or --task auto/8 under a Kubernetes Indexed Job";

/// Parses `I/T`, `auto/T` or `auto`; `environment` gives the value of a variable.
///
/// # Errors
/// For a text that is none of these, an index outside the tasks, or an environment that does not say what `auto` needs.
pub fn parse(text: &str, environment: impl Fn(&str) -> Option<String>) -> anyhow::Result<Task> {
    let bad = |what: String| Failure::usage(what, HELP);
    let number = |name: &str| -> anyhow::Result<Option<u32>> {
        match environment(name) {
            None => Ok(None),
            Some(value) => match value.trim().parse() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(bad(format!("--task {text}: {name}=\"{value}\" is no number"))),
            },
        }
    };
    let (index, count) = match text.split_once('/') {
        Some((index, count)) => {
            let count = count
                .trim()
                .parse()
                .map_err(|_| bad(format!("--task {text} does not end with the number of tasks")))?;
            (index.trim(), Some(count))
        }
        None => (text.trim(), None),
    };
    let found = if index == "auto" {
        scheduled(&number)?.ok_or_else(|| {
            bad(format!("--task {text}: none of SLURM_ARRAY_TASK_ID, SLURM_PROCID and JOB_COMPLETION_INDEX is set"))
        })?
    } else {
        let index = index.parse().map_err(|_| bad(format!("--task {text} is not I/T")))?;
        (index, None)
    };
    let count = count.or(found.1).ok_or_else(|| bad(format!("--task {text} does not say how many tasks there are")))?;
    if found.0 >= count {
        return Err(bad(format!("--task {text}: index {} is not below the number of tasks, {count}", found.0)));
    }
    Ok(Task { index: found.0, count })
}

/// Index and number of tasks of a SLURM array, of a SLURM step, or of a Kubernetes Indexed Job (which tells no number).
fn scheduled(number: &impl Fn(&str) -> anyhow::Result<Option<u32>>) -> anyhow::Result<Option<(u32, Option<u32>)>> {
    if let Some(id) = number("SLURM_ARRAY_TASK_ID")? {
        let least = number("SLURM_ARRAY_TASK_MIN")?.unwrap_or(0);
        let step = number("SLURM_ARRAY_TASK_STEP")?.unwrap_or(1).max(1);
        return Ok(Some((id.saturating_sub(least) / step, number("SLURM_ARRAY_TASK_COUNT")?)));
    }
    if let Some(index) = number("SLURM_PROCID")? {
        return Ok(Some((index, number("SLURM_NTASKS")?)));
    }
    Ok(number("JOB_COMPLETION_INDEX")?.map(|index| (index, None)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, variables: &[(&str, &str)]) -> anyhow::Result<Task> {
        parse(text, |name| variables.iter().find(|v| v.0 == name).map(|v| v.1.to_owned()))
    }

    #[test]
    fn schedulers_are_understood() {
        let task = |index, count| Task { index, count };
        assert_eq!(of("2/8", &[]).unwrap(), task(2, 8));
        let array = [
            ("SLURM_ARRAY_TASK_ID", "7"),
            ("SLURM_ARRAY_TASK_MIN", "1"),
            ("SLURM_ARRAY_TASK_STEP", "2"),
            ("SLURM_ARRAY_TASK_COUNT", "4"),
            ("SLURM_PROCID", "0"),
        ];
        assert_eq!(of("auto", &array).unwrap(), task(3, 4));
        assert_eq!(of("auto", &[("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2")]).unwrap(), task(1, 2));
        assert_eq!(of("auto/16", &[("JOB_COMPLETION_INDEX", "15")]).unwrap(), task(15, 16));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, variables, says) in [
            ("8/8", &[][..], "not below"),
            ("x/8", &[], "not I/T"),
            ("3", &[], "how many"),
            ("1/x", &[], "number of tasks"),
            ("auto", &[], "SLURM_ARRAY_TASK_ID"),
            ("auto", &[("JOB_COMPLETION_INDEX", "1")], "how many"),
            ("auto/2", &[("JOB_COMPLETION_INDEX", "two")], "no number"),
        ] {
            let error = of(text, variables).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
