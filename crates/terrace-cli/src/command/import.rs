//! `terrace import`.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::ProgressBar;
use terrace::{Db, EngineKind, Error, Ingest, WriteBatch};
use terrace_base::clock::{Clock, SystemClock};
use terrace_bench::report::grouped;

use crate::args::file_of;
use crate::escape::preview;
use crate::failure::{CommandResult, Failure};
use crate::interrupt::{self, Interruptible};
use crate::keyspace::{KeyspaceArg, Records};
use crate::made::Made;
use crate::open::{Intent, OpenArgs};
use crate::progress;
use crate::records::{Format, Lines, Record, within_limits};
use terrace_base::size;

/// A batch is written when it holds this many records, or this many bytes.
const BATCH_RECORDS: u64 = 1000;
const BATCH_BYTES: usize = 1 << 20;

/// Reads records into the database, making it if there is none
///
/// tsv: a record a line: key, tab, value. In both, \\ is a backslash, \t a tab, \n a line feed, \r a
/// carriage return and \xNN any byte.
///
/// json: an object a line: {"key":"..","value":".."}. Bytes that are not UTF-8 are given in base64 as
/// "key_b64" and "value_b64" instead.
///
/// With --sorted the records must come in the order of their keys' bytes, as export writes them.
///
/// A key that is there is overwritten; of lines with the same key the last wins. Importing twice, or
/// again after an import that was cut short, ends in the same state. A line that cannot be read ends
/// the import with its number, unless --keep-going. An import that fails before it has written a record
/// leaves no database behind that was not there before.
#[derive(Debug, Args)]
#[command(
    verbatim_doc_comment,
    after_help = "Examples:\n  terrace import ./db records.tsv\n  zcat dump.jsonl.gz | terrace import ./db - --format json\n  terrace export ./old | terrace import ./new - --sorted --engine lsm"
)]
pub struct Import {
    /// The database
    pub dir: PathBuf,
    /// The file, or - for standard input
    pub file: PathBuf,
    /// How the records are written
    #[arg(long, default_value = "tsv")]
    pub format: Format,
    /// Report lines that cannot be read and import the others
    #[arg(long)]
    pub keep_going: bool,
    /// The records come in key order, and no key twice: ingest them, which is faster. Engines lsm, tlsm and
    /// wip import all of them or none
    #[arg(long)]
    pub sorted: bool,
    /// The keyspace.
    #[command(flatten)]
    pub keyspace: KeyspaceArg,
    /// How to open the database.
    #[command(flatten)]
    pub open: OpenArgs,
}

struct Importer<'a> {
    args: &'a Import,
    /// Open from the first record on, if it has to be made.
    db: Option<Db>,
    /// The keyspace to import into, once there is a record for it.
    records: Option<Records>,
    bar: ProgressBar,
    batch: WriteBatch,
    batch_records: u64,
    batch_bytes: usize,
    /// Records acknowledged.
    imported: u64,
    bad_lines: u64,
    /// A sorted import takes place as a whole or not at all.
    is_atomic: bool,
}

impl Import {
    /// Runs the command.
    pub fn run(&self, out: &mut dyn Write) -> CommandResult {
        interrupt::install()?;
        let (input, length) = self.input()?;
        let made = Made::about_to(&self.dir, &self.open.options());
        let db = if made.is_none() { Some(self.open.open(&self.dir, Intent::Create)?) } else { None };
        let clock = SystemClock::new();
        let mut importer = Importer {
            args: self,
            db,
            records: None,
            bar: progress::bytes(length),
            batch: WriteBatch::new(),
            batch_records: 0,
            batch_bytes: 0,
            imported: 0,
            bad_lines: 0,
            is_atomic: false,
        };
        let mut lines = Lines::new(BufReader::with_capacity(1 << 18, input));
        let result = importer.run(&mut lines);
        importer.bar.finish_and_clear();
        // Closed even when a line was wrong: the records before it are kept.
        let closed = importer.db.as_ref().map_or(Ok(()), Db::close);
        // Its lock is still held, so nobody else uses it.
        if let (Some(made), Some(_)) = (made, &importer.db)
            && result.is_err()
            && importer.imported == 0
        {
            made.remove();
        }
        result?;
        closed?;
        report(&importer, lines.bytes(), clock.now().as_secs_f64(), out)
    }

    fn input(&self) -> CommandResult<(Box<dyn Read>, Option<u64>)> {
        let file = Some(self.file.clone());
        let Some(path) = file_of(&file) else {
            return Ok((Box::new(Interruptible(io::stdin())), None));
        };
        let file = File::open(path).map_err(|e| Failure::io(path, "open", e))?;
        if file.metadata().is_ok_and(|m| m.is_dir()) {
            return Err(Failure::usage(format!("{} is a directory, and no file of records", path.display())));
        }
        let length = file.metadata().ok().filter(|m| m.is_file()).map(|m| m.len());
        Ok((Box::new(Interruptible(file)), length))
    }

    fn name(&self) -> String {
        if self.file == Path::new("-") {
            "standard input".to_string()
        } else {
            self.file.display().to_string()
        }
    }
}

fn report(importer: &Importer<'_>, bytes: u64, seconds: f64, out: &mut dyn Write) -> CommandResult {
    writeln!(
        out,
        "imported {} records from {}, {} in {seconds:.2} s, {} a second",
        grouped(importer.imported),
        importer.args.name(),
        size::human(bytes),
        grouped((importer.imported as f64 / seconds.max(1e-6)) as u64),
    )?;
    match importer.bad_lines {
        0 => Ok(()),
        1 => Err(Failure::error("1 line could not be read and was not imported")),
        n => Err(Failure::error(format!("{} lines could not be read and were not imported", grouped(n)))),
    }
}

impl Importer<'_> {
    fn run<R: io::BufRead>(&mut self, lines: &mut Lines<R>) -> CommandResult {
        if self.args.sorted {
            return self.run_sorted(lines);
        }
        let mut record = Record::default();
        while self.next_record(lines, &mut record)?.is_some() {
            self.add(&record)?;
        }
        self.write_batch()?;
        // A file without records makes a database, too.
        self.db().map(drop)
    }

    /// Ingests the records, which come in key order.
    fn run_sorted<R: io::BufRead>(&mut self, lines: &mut Lines<R>) -> CommandResult {
        let db = self.db()?;
        self.is_atomic = EngineKind::parse(db.stats().engine)?.ingests_atomically();
        let records = self.args.keyspace.of(&db, true)?;
        let (mut failure, before) = (None, db.stats().counts.puts);
        let done = records.ingest(|ingest| {
            let outcome = self.pass(lines, ingest);
            outcome.map_err(|cause| {
                failure = Some(cause);
                Error::InvalidArgument("the import has ended".into())
            })
        });
        match (done, failure) {
            (Ok(done), _) => self.imported = done.entries,
            (Err(error), failure) => {
                // What was written stays.
                self.imported = db.stats().counts.puts - before;
                return Err(failure.unwrap_or_else(|| Failure::from(error).hint(self.fate())));
            }
        }
        Ok(())
    }

    fn pass<R: io::BufRead>(&mut self, lines: &mut Lines<R>, ingest: &mut Ingest<'_>) -> CommandResult {
        let (mut record, mut passed) = (Record::default(), 0u64);
        while let Some(number) = self.next_record(lines, &mut record)? {
            ingest.put(&record.key, &record.value).map_err(|error| {
                let text = format!("line {number} of {}: {error}", self.args.name());
                Failure::error(text).hint(self.fate())
            })?;
            passed += 1;
            if passed.is_multiple_of(BATCH_RECORDS) {
                self.bar.set_message(format!("{} records", grouped(passed)));
            }
        }
        Ok(())
    }

    /// What becomes of the records of a sorted import that ends early.
    fn fate(&self) -> &'static str {
        match self.is_atomic {
            true => "nothing is imported",
            false => "records before it may be imported; importing them again does no harm",
        }
    }

    /// Reads the next record; returns the number of its line, or `None` behind the last.
    fn next_record<R: io::BufRead>(
        &mut self,
        lines: &mut Lines<R>,
        record: &mut Record,
    ) -> CommandResult<Option<u64>> {
        loop {
            let read = match interrupt::requested() {
                true => None,
                false => lines.next_line().map_err(|e| self.unreadable(&e))?,
            };
            // Input that Ctrl-C cut short is not a line.
            if interrupt::requested() {
                self.write_batch()?;
                return Err(self.interrupted());
            }
            let Some((number, line)) = read else { return Ok(None) };
            let args = self.args;
            let outcome = (args.format.read(line, record))
                .and_then(|()| within_limits(&record.key, &record.value))
                .and_then(|()| args.keyspace.takes(&record.key));
            if let Err(problem) = &outcome {
                self.bad_line(number, line, problem)?;
            }
            self.bar.set_position(lines.bytes());
            if outcome.is_ok() {
                return Ok(Some(number));
            }
        }
    }

    fn add(&mut self, record: &Record) -> CommandResult {
        if self.records.is_none() {
            self.records = Some(self.args.keyspace.of(&self.db()?, true)?);
        }
        if let Some(records) = &self.records {
            records.add(&mut self.batch, &record.key, &record.value);
        }
        self.batch_records += 1;
        self.batch_bytes += record.key.len() + record.value.len();
        if self.batch_records >= BATCH_RECORDS || self.batch_bytes >= BATCH_BYTES {
            self.write_batch()?;
        }
        Ok(())
    }

    fn db(&mut self) -> CommandResult<Db> {
        if self.db.is_none() {
            self.db = Some(self.args.open.open(&self.args.dir, Intent::Create)?);
        }
        self.db.clone().ok_or_else(|| Failure::error("the database is not open"))
    }

    fn write_batch(&mut self) -> CommandResult {
        if self.batch_records == 0 {
            return Ok(());
        }
        let batch = std::mem::replace(&mut self.batch, WriteBatch::new());
        self.db()?.write(batch).map_err(|e| self.explain(Failure::from(e)))?;
        self.imported += self.batch_records;
        self.batch_records = 0;
        self.batch_bytes = 0;
        self.bar.set_message(format!("{} records", grouped(self.imported)));
        Ok(())
    }

    fn bad_line(&mut self, number: u64, line: &[u8], problem: &str) -> CommandResult {
        let text = format!("line {number} of {}: {problem}: \"{}\"", self.args.name(), preview(line, 60));
        if self.args.keep_going {
            self.bad_lines += 1;
            // Standard error may be closed; then the message is lost on purpose.
            self.bar.suspend(|| drop(writeln!(io::stderr(), "terrace: {text}")));
            return Ok(());
        }
        if self.args.sorted {
            let how = "; mend the line and import again, or add --keep-going to import the others";
            return Err(Failure::error(text).hint(format!("{}{how}", self.fate())));
        }
        self.write_batch()?;
        let before = match self.imported {
            0 => "nothing is imported".to_string(),
            1 => "the record before it is imported".to_string(),
            n => format!("the {} records before it are imported", grouped(n)),
        };
        Err(Failure::error(text).hint(format!(
            "{before}; mend the line and import again (records that are there already do no harm), or add \
             --keep-going to import the rest"
        )))
    }

    fn unreadable(&self, error: &io::Error) -> Failure {
        self.explain(Failure::error(format!("cannot read {}: {error}", self.args.name())))
    }

    fn explain(&self, mut failure: Failure) -> Failure {
        if self.imported > 0 {
            failure.message.push_str(&format!(" ({} records were imported before)", grouped(self.imported)));
        }
        failure
    }

    fn interrupted(&self) -> Failure {
        if self.args.sorted {
            return interrupt::stopped(format!("stopped; {}", self.fate()));
        }
        if self.imported == 0 {
            return interrupt::stopped("stopped; nothing was imported");
        }
        interrupt::stopped(format!("stopped; {} records are imported and kept", grouped(self.imported)))
            .hint("run the same command again to import everything")
    }
}
