//! The index benchmark on small indexes: every operation is right, and what is printed and drawn is whole.

use terrace_bench::index::list::{INDEXES, with_subject};
use terrace_bench::index::{Op, Pairs, Place, Run, Runner, Spec, Step, plot, table};
use terrace_pmem::Profile;

fn run(name: &str, pairs: Pairs, threads: usize, steps: &str) -> Run {
    let dir = tempfile::tempdir().unwrap();
    let spec = Spec {
        place: Place { path: dir.path().join("pool"), profile: Some(Profile::DRAM) },
        pool_bytes: 4 << 20,
        count_xplines: true,
        pairs,
        buffer: None,
        num: 3000,
        reads: 2000,
        scan: 10,
        ahead: if threads == 2 { 3 } else { 0 },
        threads,
        steps: steps.split(',').map(|s| Step::parse(s).unwrap()).collect(),
    };
    let runner = Runner { name, spec: &spec, resumes: false, report: &mut |_| {} };
    with_subject(name, runner).unwrap().unwrap()
}

#[test]
fn every_index_answers_every_step() {
    for entry in INDEXES {
        for (_, pairs) in Pairs::ALL {
            let steps =
                "insert,read,miss,flush,update,read,scan,probes,recover,read,delete,miss,insert,read,check";
            let run = run(entry.name, pairs, 2, steps);
            assert_eq!(run.wrong(), 0, "{}: {:?}", entry.name, run.phases);
            assert_eq!(run.findings, Vec::<String>::new(), "{}", entry.name);
            assert_eq!(run.phase(Op::Insert).unwrap().operations, 3000);
            assert!(run.phase(Op::Insert).unwrap().bytes_flushed > 0);
            assert_eq!((run.recoveries.len(), run.footprints.len()), (1, 2));
        }
    }
}

#[test]
fn runs_are_printed_and_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let steps = "insert,read,recover";
    let runs: Vec<Run> = (1..3).map(|threads| run("fastfair", Pairs::Eight, threads, steps)).collect();
    let text = table::table(&runs);
    assert_eq!(text.lines().count(), 5, "{text}");
    let widths: Vec<usize> = text.lines().map(|l| l.chars().count()).collect();
    assert!(widths.iter().all(|w| *w == widths[0]), "{text}");
    assert!(table::facts(&runs[0]).contains("unclean stop"));
    let made = plot::figures(&runs, dir.path()).unwrap();
    assert!(made.len() >= 4, "{made:?}");
    for path in made {
        let svg = std::fs::read_to_string(path).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    }
}

#[test]
fn steps_that_there_are_not_have_no_name() {
    assert!(Step::parse("insert").is_some() && Step::parse("probes").is_some());
    assert!(Step::parse("dance").is_none());
}
