//! A progress bar on standard error, if that is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar over `total` bytes, or a count of bytes if the end is not known.
pub fn bytes(total: Option<u64>) -> ProgressBar {
    match total {
        Some(total) => styled(total, "{bar:24} {percent:>3}%  {bytes_per_sec}  {msg}"),
        None => styled_spinner("{spinner} {bytes}  {bytes_per_sec}  {msg}"),
    }
}

/// A bar over `total` operations of `name`, or a count if the end is not known.
pub fn operations(name: &str, total: Option<u64>) -> ProgressBar {
    let bar = match total {
        Some(total) => styled(total, "{msg:12} {bar:24} {percent:>3}%  {human_pos}  {per_sec}"),
        None => styled_spinner("{msg:12} {spinner} {human_pos}  {per_sec}"),
    };
    bar.set_message(name.to_string());
    bar
}

fn styled(total: u64, template: &str) -> ProgressBar {
    with_style(ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr()), template)
}

fn styled_spinner(template: &str) -> ProgressBar {
    with_style(ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()), template)
}

fn with_style(bar: ProgressBar, template: &str) -> ProgressBar {
    // A template that cannot be read leaves the default look.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
