//! Prints tables that fit the width of the terminal. Leaves out columns in a fixed order until the rest fits, and
//! shortens texts that are still too long.

use std::io::{self, Write};
use std::os::fd::AsFd;

/// The width of tables if neither the terminal nor `COLUMNS` gives one.
const DEFAULT_WIDTH: usize = 80;
/// The minimum width of the last column, unless its cells need less. The table leaves out other columns until the last
/// one has this width.
const NARROWEST_LAST: usize = 12;
/// The minimum width to which a table shrinks a column.
const NARROWEST: usize = 8;
const GAP: usize = 2;

/// A column of a table. All columns of a table have the same number of cells.
pub(in crate::cli) struct Column {
    pub(in crate::cli) title: &'static str,
    pub(in crate::cli) cells: Vec<String>,
    pub(in crate::cli) is_number: bool,
    /// The maximum width of the column; the table shortens longer cells. Has no effect on the last column, which gets
    /// the rest of the table's width.
    pub(in crate::cli) widest: usize,
    /// Whether the table may make the column narrower than its cells if there is no room.
    pub(in crate::cli) shrinks: bool,
    /// The order in which the table leaves out columns if there is no room: the highest number first, and never a
    /// column with 0.
    pub(in crate::cli) leave_out: u8,
}

impl Column {
    fn width(&self) -> usize {
        let cells = self.cells.iter().map(|cell| cell.chars().count());
        cells.chain([self.title.len()]).max().unwrap_or(0).min(self.widest)
    }
}

/// Returns the width that tables must fit into: the width of the terminal, or else the value of `COLUMNS`, or else 80.
pub(in crate::cli) fn width() -> usize {
    let terminal = io::stdout();
    let of_terminal = crate::sys::terminal::columns(terminal.as_fd()).filter(|width| *width > 0);
    let of_variable = || std::env::var("COLUMNS").ok()?.parse().ok().filter(|width| *width > 0);
    of_terminal.or_else(of_variable).unwrap_or(DEFAULT_WIDTH)
}

pub(in crate::cli) fn write(mut columns: Vec<Column>, width: usize, out: &mut dyn Write) -> io::Result<()> {
    let widths = fit(&mut columns, width);
    let titles: Vec<String> = columns.iter().map(|column| column.title.to_string()).collect();
    write_row(&titles, &columns, &widths, out)?;
    let rows = columns.first().map_or(0, |column| column.cells.len());
    for row in 0..rows {
        let cells: Vec<String> = columns.iter().map(|column| column.cells[row].clone()).collect();
        write_row(&cells, &columns, &widths, out)?;
    }
    Ok(())
}

/// Leaves out columns until the table fits, then shrinks columns, and returns the widths of the remaining columns. The
/// table stays too wide if that is not enough.
fn fit(columns: &mut Vec<Column>, width: usize) -> Vec<usize> {
    let needed = |columns: &[Column]| -> usize {
        let last = columns.last().map_or(0, |column| column.width().min(NARROWEST_LAST));
        let others = columns.iter().rev().skip(1).map(|column| column.width() + GAP);
        others.sum::<usize>() + last
    };
    while needed(columns) > width {
        let first_out = (0..columns.len()).max_by_key(|&index| columns[index].leave_out);
        match first_out.filter(|&index| columns[index].leave_out > 0) {
            Some(index) => drop(columns.remove(index)),
            None => break,
        }
    }
    let mut widths: Vec<usize> = columns.iter().map(Column::width).collect();
    let Some((last, others)) = widths.split_last_mut() else { return widths };
    let room = width.saturating_sub(NARROWEST_LAST.min(*last));
    while others.iter().map(|width| width + GAP).sum::<usize>() > room {
        let shrinking = others.iter_mut().zip(&*columns).filter(|(_, column)| column.shrinks);
        match shrinking.map(|(width, _)| width).max() {
            Some(widest) if *widest > NARROWEST => *widest -= 1,
            _ => break,
        }
    }
    let used: usize = others.iter().map(|width| width + GAP).sum();
    *last = width.saturating_sub(used).max(1);
    widths
}

fn write_row(cells: &[String], columns: &[Column], widths: &[usize], out: &mut dyn Write) -> io::Result<()> {
    let mut line = String::new();
    for ((cell, column), &width) in cells.iter().zip(columns).zip(widths) {
        if !line.is_empty() {
            line += "  ";
        }
        let cell = cut(cell, width);
        line += &if column.is_number { format!("{cell:>width$}") } else { format!("{cell:<width$}") };
    }
    writeln!(out, "{}", line.trim_end())
}

/// Shortens text to at most `width` characters. Shortened text ends with `…`.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_string();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(width: usize) -> String {
        let column = |title, cell: &str, widest, leave_out| Column {
            title,
            cells: vec![cell.to_string()],
            is_number: false,
            widest,
            shrinks: title == "BRANCH",
            leave_out,
        };
        let columns = vec![
            column("ID", "12345678", 36, 0),
            column("SIZE", "12.3 KiB", 9, 2),
            column("TIME", "3m12s", 9, 1),
            column("BRANCH", &"b".repeat(40), 24, 0),
            column("COMMAND", &"c".repeat(100), usize::MAX, 0),
        ];
        let mut out = Vec::new();
        write(columns, width, &mut out).unwrap_or_else(|error| panic!("{error}"));
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn a_table_fits() {
        for width in [20, 40, 60, 80, 200] {
            let table = shown(width);
            assert!(table.lines().all(|line| line.chars().count() <= width.max(23)), "{width}\n{table}");
            assert!(table.contains("12345678") && table.contains("bbb"), "{width}\n{table}");
        }
        assert!(shown(200).contains(&"c".repeat(100)));
        assert!(shown(60).contains("TIME") && !shown(60).contains("SIZE"), "{}", shown(60));
        assert!(!shown(40).contains("TIME") && shown(40).contains('…'));
    }
}
