//! `terrace import`.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::ProgressBar;
use terrace::{Db, WriteBatch};
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
/// A key that is there is overwritten; of lines with the same key the last wins. Importing twice, or
/// again after an import that was cut short, ends in the same state. A line that cannot be read ends
/// the import with its number, unless --keep-going. An import that fails before it has written a record
/// leaves no database behind that was not there before.
#[derive(Debug, Args)]
#[command(
    verbatim_doc_comment,
    after_help = "Examples:\n  terrace import ./db records.tsv\n  zcat dump.jsonl.gz | terrace import ./db - --format json"
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
        let mut record = Record::default();
        loop {
            if interrupt::requested() {
                self.write_batch()?;
                return Err(self.interrupted());
            }
            let read = lines.next_line().map_err(|e| self.unreadable(&e))?;
            // Input that Ctrl-C cut short is not a line.
            let Some((number, line)) = read.filter(|_| !interrupt::requested()) else {
                self.write_batch()?;
                if interrupt::requested() {
                    return Err(self.interrupted());
                }
                // A file without records makes a database, too.
                return self.db().map(drop);
            };
            match self
                .args
                .format
                .read(line, &mut record)
                .and_then(|()| within_limits(&record.key, &record.value))
                .and_then(|()| self.args.keyspace.takes(&record.key))
            {
                Ok(()) => self.add(&record)?,
                Err(problem) => self.bad_line(number, line, &problem)?,
            }
            self.bar.set_position(lines.bytes());
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
        if self.imported == 0 {
            return interrupt::stopped("stopped; nothing was imported");
        }
        interrupt::stopped(format!("stopped; {} records are imported and kept", grouped(self.imported)))
            .hint("run the same command again to import everything")
    }
}
