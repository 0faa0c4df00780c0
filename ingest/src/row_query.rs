//! The check that a query is row-wise: each row of the result comes from one row of the input, whatever the other rows
//! are, so that a table may be worked on in pieces and every row traced.

use std::{collections::BTreeSet, ops::ControlFlow};

use gristmill_shard::{
    Error, Result, nearest_name,
    schema::{DatasetSchema, SOURCE_ROW, is_reserved},
};
use sqlparser::{
    ast::{
        BinaryOperator, Expr, Function, FunctionArguments, GroupByExpr, Ident, ObjectName, Query, Select, SelectItem,
        SetExpr, Statement, TableFactor, Visit, Visitor,
    },
    dialect::GenericDialect,
    parser::{Parser, ParserOptions},
};

/// The table that a query reads.
pub const INPUT_TABLE: &str = "input";
const MAX_QUERY_BYTES: usize = 64 << 10;

/// Functions of one row's values.
const FUNCTIONS: &[&str] = &[
    "abs",
    "acos",
    "acosd",
    "asin",
    "asind",
    "atan",
    "atan2",
    "atan2d",
    "atand",
    "bit_and",
    "bit_count",
    "bit_length",
    "bit_not",
    "bit_or",
    "bit_xor",
    "bitand",
    "bitcount",
    "bitnot",
    "bitor",
    "bitxor",
    "cbrt",
    "ceil",
    "ceiling",
    "char_length",
    "character_length",
    "coalesce",
    "concat",
    "concat_ws",
    "cos",
    "cosd",
    "cot",
    "cotd",
    "date",
    "date_part",
    "datetime",
    "degrees",
    "div",
    "ends_with",
    "exp",
    "floor",
    "greatest",
    "if",
    "ifnull",
    "initcap",
    "least",
    "left",
    "length",
    "ln",
    "log",
    "log10",
    "log1p",
    "log2",
    "lower",
    "lpad",
    "ltrim",
    "mod",
    "normalize",
    "nullif",
    "octet_length",
    "pi",
    "pow",
    "power",
    "radians",
    "regexp_like",
    "replace",
    "reverse",
    "right",
    "round",
    "rpad",
    "rtrim",
    "sign",
    "sin",
    "sind",
    "split_part",
    "sqrt",
    "starts_with",
    "strftime",
    "strpos",
    "strptime",
    "substr",
    "tan",
    "tand",
    "time",
    "timestamp",
    "trunc",
    "truncate",
    "upper",
    "xor",
];

/// A query that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RowQuery {
    /// As it was given.
    pub(crate) text: String,
    /// With `_source_row` added to what is selected.
    pub(crate) with_source_row: String,
    /// For each item of the SELECT list that is no wildcard: its alias, and whether it is null only where it reads null.
    known_not_null: BTreeSet<String>,
}

impl RowQuery {
    /// Checks `text` against the columns of the input.
    ///
    /// # Errors
    /// [`Error::Usage`]: what does not parse, what is not row-wise, and names that do not exist (with the nearest).
    pub(crate) fn parse(text: &str, input: &DatasetSchema) -> Result<Self> {
        if text.len() > MAX_QUERY_BYTES {
            return Err(Error::usage(
                format!("the query has {} bytes, at most {MAX_QUERY_BYTES}", text.len()),
                "shorten it",
            ));
        }
        // The dialect and options of polars' own parser.
        let options = ParserOptions { trailing_commas: true, ..ParserOptions::default() };
        let statements = Parser::new(&GenericDialect)
            .with_options(options)
            .try_with_sql(text)
            .and_then(|mut p| p.parse_statements())
            .map_err(|e| {
                Error::usage(format!("the query does not parse: {e}"), "write SELECT … FROM input [WHERE …]")
            })?;
        let [Statement::Query(query)] = statements.as_slice() else {
            return Err(refuse("anything but one SELECT statement"));
        };
        let select = plain_select(query)?;
        let table_names = table(select)?;
        let mut checker = Checker { queries: 0, input, table_names, problem: None };
        let _ = query.visit(&mut checker);
        if let Some(problem) = checker.problem {
            return Err(problem);
        }
        let mut changed = query.clone();
        if let SetExpr::Select(select) = changed.body.as_mut() {
            select.projection.push(SelectItem::UnnamedExpr(Expr::Identifier(Ident::with_quote('"', SOURCE_ROW))));
        }
        Ok(Self {
            text: query.to_string(),
            with_source_row: changed.to_string(),
            known_not_null: known_not_null(select, input),
        })
    }

    /// Whether column `name` of the result can't be null, from the expressions and the input's own columns.
    pub(crate) fn is_not_null(&self, name: &str) -> bool {
        self.known_not_null.contains(name)
    }
}

fn refuse(what: &str) -> Error {
    Error::usage(
        format!("the query has {what}, which is not row-wise"),
        "each row of the result must come from one row of the input: write SELECT … FROM input [WHERE …] with expressions of a row's own values",
    )
}

fn plain_select(query: &Query) -> Result<&Select> {
    for (present, what) in [
        (query.with.is_some(), "WITH"),
        (query.order_by.is_some(), "ORDER BY"),
        (query.limit_clause.is_some() || query.fetch.is_some(), "LIMIT, OFFSET or FETCH"),
        (!query.locks.is_empty() || query.for_clause.is_some(), "FOR"),
        (query.settings.is_some() || query.format_clause.is_some(), "SETTINGS or FORMAT"),
        (!query.pipe_operators.is_empty(), "a pipe operator"),
    ] {
        if present {
            return Err(refuse(what));
        }
    }
    let select = match query.body.as_ref() {
        SetExpr::Select(select) => select,
        SetExpr::SetOperation { op, .. } => return Err(refuse(&op.to_string())),
        SetExpr::Query(_) => return Err(refuse("a query in parentheses")),
        _ => return Err(refuse("something else than SELECT")),
    };
    let grouped = match &select.group_by {
        GroupByExpr::Expressions(by, modifiers) => !by.is_empty() || !modifiers.is_empty(),
        GroupByExpr::All(_) => true,
    };
    for (present, what) in [
        (select.distinct.is_some(), "DISTINCT"),
        (select.top.is_some(), "TOP"),
        (grouped, "GROUP BY"),
        (select.having.is_some(), "HAVING"),
        (select.qualify.is_some() || !select.named_window.is_empty(), "a window"),
        (
            !select.cluster_by.is_empty() || !select.distribute_by.is_empty() || !select.sort_by.is_empty(),
            "CLUSTER, DISTRIBUTE or SORT BY",
        ),
        (!select.connect_by.is_empty(), "CONNECT BY"),
        (!select.lateral_views.is_empty(), "LATERAL VIEW"),
        (select.into.is_some(), "INTO"),
        (
            select.prewhere.is_some() || select.value_table_mode.is_some() || select.exclude.is_some(),
            "a clause of another dialect",
        ),
        (select.select_modifiers.is_some() || !select.optimizer_hints.is_empty(), "a modifier of another dialect"),
    ] {
        if present {
            return Err(refuse(what));
        }
    }
    Ok(select)
}

/// Names by which the query may call its table.
fn table(select: &Select) -> Result<Vec<String>> {
    let [from] = select.from.as_slice() else {
        return Err(if select.from.is_empty() {
            Error::usage("the query has no FROM", format!("write SELECT … FROM {INPUT_TABLE}"))
        } else {
            refuse("more than one table")
        });
    };
    if !from.joins.is_empty() {
        return Err(refuse("a JOIN"));
    }
    let TableFactor::Table {
        name,
        alias,
        args: None,
        with_hints,
        version: None,
        with_ordinality: false,
        partitions,
        json_path: None,
        sample: None,
        index_hints,
    } = &from.relation
    else {
        return Err(refuse("something else than a plain table after FROM"));
    };
    if !with_hints.is_empty() || !partitions.is_empty() || !index_hints.is_empty() {
        return Err(refuse("hints or partitions after FROM"));
    }
    if name.to_string() != INPUT_TABLE {
        return Err(Error::usage(
            format!("the query reads table {name}"),
            format!("the one table is called {INPUT_TABLE}: write FROM {INPUT_TABLE}"),
        ));
    }
    let mut names = vec![INPUT_TABLE.to_owned()];
    if let Some(alias) = alias {
        if !alias.columns.is_empty() {
            return Err(refuse("new column names after FROM"));
        }
        names.push(alias.name.value.clone());
    }
    Ok(names)
}

struct Checker<'a> {
    queries: u32,
    input: &'a DatasetSchema,
    table_names: Vec<String>,
    problem: Option<Error>,
}

impl Checker<'_> {
    fn column(&self, ident: &Ident) -> Result<()> {
        let name = &ident.value;
        if is_reserved(name) {
            return Err(Error::usage(
                format!("the query names column \"{name}\": names that start with \"_\" are reserved"),
                "leave it out; where rows came from is kept by itself",
            ));
        }
        if self.input.columns.iter().any(|c| &c.name == name) {
            return Ok(());
        }
        Err(Error::usage(
            format!("the query: there is no column \"{name}\""),
            nearest_name(name, self.input.columns.iter().map(|c| c.name.as_str())),
        ))
    }

    fn function(function: &Function) -> Result<()> {
        let name = function.name.to_string().to_ascii_lowercase();
        if function.over.is_some() {
            return Err(refuse(&format!("the window function {name}(…) OVER")));
        }
        if !FUNCTIONS.contains(&name.as_str()) {
            return Err(match nearest_name(&name, FUNCTIONS.iter().copied()) {
                near if near.starts_with("did you mean") && !AGGREGATES.contains(&name.as_str()) => Error::usage(
                    format!("the query: there is no row-wise function {name}()"),
                    near.split(" (valid").next().unwrap_or_default().to_owned(),
                ),
                _ => refuse(&format!("the function {name}()")),
            });
        }
        let FunctionArguments::List(list) = &function.args else {
            return Err(refuse(&format!("{name} without a list of arguments")));
        };
        if function.filter.is_some()
            || !function.within_group.is_empty()
            || function.null_treatment.is_some()
            || list.duplicate_treatment.is_some()
            || !list.clauses.is_empty()
        {
            return Err(refuse(&format!("a clause inside {name}()")));
        }
        Ok(())
    }

    fn expression(&self, expr: &Expr) -> Result<()> {
        match expr {
            Expr::Identifier(ident) => self.column(ident),
            Expr::CompoundIdentifier(parts) => match parts.as_slice() {
                [table, column] if self.table_names.contains(&table.value) => self.column(column),
                _ => Err(Error::usage(
                    format!("the query: {expr} is no column of {INPUT_TABLE}"),
                    nearest_name(&expr.to_string(), self.input.columns.iter().map(|c| c.name.as_str())),
                )),
            },
            Expr::Function(function) => Self::function(function),
            Expr::Subquery(_) | Expr::InSubquery { .. } | Expr::Exists { .. } => Err(refuse("a subquery")),
            Expr::GroupingSets(_) | Expr::Cube(_) | Expr::Rollup(_) => Err(refuse("grouping")),
            Expr::InUnnest { .. } => Err(refuse("UNNEST")),
            Expr::Wildcard(_) | Expr::QualifiedWildcard(..) => Err(refuse("a * inside an expression")),
            Expr::Lambda(_) | Expr::Prior(_) | Expr::OuterJoin(_) | Expr::MatchAgainst { .. } => {
                Err(refuse(&format!("the expression {expr}")))
            }
            _ => Ok(()),
        }
    }

    fn step(&mut self, result: Result<()>) -> ControlFlow<()> {
        match result {
            Ok(()) => ControlFlow::Continue(()),
            Err(e) => {
                self.problem = Some(e);
                ControlFlow::Break(())
            }
        }
    }
}

/// Functions that are refused for what they are, not taken for a slip of the pen.
const AGGREGATES: &[&str] = &[
    "avg",
    "corr",
    "count",
    "first",
    "last",
    "max",
    "median",
    "min",
    "sum",
    "total",
    "var",
    "variance",
    "stddev",
    "lag",
    "lead",
    "rank",
    "row_number",
    "unnest",
    "columns",
];

impl Visitor for Checker<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, _query: &Query) -> ControlFlow<()> {
        self.queries += 1;
        let result = if self.queries > 1 { Err(refuse("a subquery")) } else { Ok(()) };
        self.step(result)
    }

    fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<()> {
        let known = self.table_names.contains(&relation.to_string());
        let result = if known { Ok(()) } else { Err(refuse(&format!("the table {relation}"))) };
        self.step(result)
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        let result = self.expression(expr);
        self.step(result)
    }
}

/// Result columns that can't be null. A name that is selected more than once is not judged: the query fails anyway.
fn known_not_null(select: &Select, input: &DatasetSchema) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut derived = BTreeSet::new();
    for item in &select.projection {
        match item {
            SelectItem::Wildcard(options) => {
                let plain = options.opt_replace.is_none() && options.opt_rename.is_none();
                if plain {
                    names.extend(input.columns.iter().filter(|c| !c.nullable).map(|c| c.name.clone()));
                }
            }
            SelectItem::ExprWithAlias { expr, alias } => {
                if not_null(expr, input) {
                    names.insert(alias.value.clone());
                } else {
                    derived.insert(alias.value.clone());
                }
            }
            SelectItem::UnnamedExpr(expr) => {
                // Only a plain column's name is known without polars' naming rules.
                if let Some(name) = column_name(expr)
                    && not_null(expr, input)
                {
                    names.insert(name.to_owned());
                }
            }
            _ => {}
        }
    }
    names.retain(|n| !derived.contains(n));
    names
}

fn column_name(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Identifier(ident) => Some(&ident.value),
        Expr::CompoundIdentifier(parts) => parts.last().map(|p| p.value.as_str()),
        Expr::Nested(inner) => column_name(inner),
        _ => None,
    }
}

/// Whether an expression is null only where a column that it reads is, and those are never null.
fn not_null(expr: &Expr, input: &DatasetSchema) -> bool {
    use BinaryOperator as B;
    let all = |parts: &[&Expr]| parts.iter().all(|e| not_null(e, input));
    match expr {
        Expr::Identifier(_) | Expr::CompoundIdentifier(_) => {
            let name = column_name(expr).unwrap_or_default();
            input.columns.iter().any(|c| c.name == name && !c.nullable)
        }
        Expr::Nested(inner) | Expr::UnaryOp { expr: inner, .. } | Expr::Extract { expr: inner, .. } => {
            not_null(inner, input)
        }
        Expr::Value(value) => !matches!(value.value, sqlparser::ast::Value::Null),
        Expr::IsNull(_) | Expr::IsNotNull(_) => true,
        Expr::BinaryOp { left, op, right } => {
            matches!(
                op,
                B::Plus
                    | B::Minus
                    | B::Multiply
                    | B::Gt
                    | B::Lt
                    | B::GtEq
                    | B::LtEq
                    | B::Eq
                    | B::NotEq
                    | B::And
                    | B::Or
            ) && all(&[left, right])
        }
        Expr::Between { expr, low, high, .. } => all(&[expr, low, high]),
        Expr::InList { expr, list, .. } => not_null(expr, input) && list.iter().all(|e| not_null(e, input)),
        Expr::Case { operand, conditions, else_result: Some(else_result), .. } => {
            operand.as_ref().is_none_or(|o| not_null(o, input))
                && conditions.iter().all(|w| not_null(&w.result, input))
                && not_null(else_result, input)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_shard::{ErrorKind, schema::Column};

    fn input() -> DatasetSchema {
        let column = |name: &str, column_type: &str, nullable| Column {
            name: name.into(),
            column_type: column_type.parse().unwrap(),
            nullable,
            role: None,
        };
        DatasetSchema {
            columns: vec![
                column("date", "timestamp[us]", false),
                column("delay", "int64", false),
                column("origin", "string", true),
            ],
        }
    }

    #[test]
    fn what_is_not_row_wise_is_refused() {
        for (sql, want) in [
            ("SELECT count(*) FROM input", "count()"),
            ("SELECT SUM(delay) FROM input", "sum()"),
            ("SELECT delay FROM input GROUP BY delay", "GROUP BY"),
            ("SELECT delay FROM input GROUP BY ALL", "GROUP BY"),
            ("SELECT DISTINCT delay FROM input", "DISTINCT"),
            ("SELECT delay FROM input LIMIT 5", "LIMIT"),
            ("SELECT delay FROM input OFFSET 5", "LIMIT"),
            ("SELECT delay FROM input FETCH FIRST 2 ROWS ONLY", "LIMIT"),
            ("SELECT delay FROM input ORDER BY delay", "ORDER BY"),
            ("SELECT row_number() OVER (ORDER BY delay) FROM input", "OVER"),
            ("SELECT abs(delay) OVER () FROM input", "OVER"),
            ("SELECT delay FROM input QUALIFY delay > 1", "window"),
            ("SELECT delay FROM input UNION ALL SELECT delay FROM input", "UNION"),
            ("SELECT delay FROM input WHERE delay IN (SELECT delay FROM input)", "subquery"),
            ("SELECT (SELECT 1) AS x FROM input", "subquery"),
            ("SELECT delay FROM input WHERE EXISTS (SELECT 1)", "subquery"),
            ("SELECT delay FROM (SELECT * FROM input)", "plain table"),
            ("SELECT a.delay FROM input a JOIN input b ON a.delay = b.delay", "JOIN"),
            ("SELECT delay FROM input, input", "more than one table"),
            ("WITH t AS (SELECT 1) SELECT delay FROM input", "WITH"),
            ("SELECT delay FROM read_csv('x')", "plain table"),
            ("SELECT delay FROM flights", "FROM input"),
            ("SELECT 1", "no FROM"),
            ("DROP TABLE input", "one SELECT"),
            ("SELECT delay FROM input; SELECT delay FROM input", "one SELECT"),
            ("DELETE FROM input", "one SELECT"),
            ("SELECT unnest(origin) FROM input", "unnest()"),
            ("SELECT COLUMNS('.*') FROM input", "columns()"),
            ("SELECT lag(delay) FROM input", "lag()"),
            ("SELECT delay FROM input TABLESAMPLE (10)", "not row-wise"),
            ("SELECT dely FROM input", "did you mean \"delay\""),
            ("SELECT input.dely FROM input", "did you mean \"delay\""),
            ("SELECT delay FROM input WHERE orign = 'x'", "did you mean \"origin\""),
            ("SELECT other.delay FROM input", "no column of input"),
            ("SELECT _source_row FROM input", "reserved"),
            ("SELECT uper(origin) FROM input", "did you mean \"upper\""),
            ("SELEC delay FROM input", "parse"),
            ("SELECT delay FROM", "parse"),
            ("", "one SELECT"),
        ] {
            let error = RowQuery::parse(sql, &input()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{sql}");
            assert!(error.to_string().contains(want), "{sql}: {error}");
        }
    }

    #[test]
    fn what_is_row_wise_is_taken() {
        for sql in [
            "SELECT * FROM input",
            "SELECT *, delay > 15 AS late FROM input WHERE origin IS NOT NULL",
            "SELECT t.delay FROM input AS t",
            "SELECT * EXCLUDE (origin), EXTRACT(HOUR FROM date) AS hour FROM input",
            "SELECT CASE WHEN delay > 15 THEN 'late' ELSE 'fine' END AS x, CAST(delay AS DOUBLE) AS d FROM input",
            "SELECT upper(origin) AS o, coalesce(origin, '?') AS p FROM input WHERE delay BETWEEN 1 AND 5 OR origin LIKE 'A%' OR origin IN ('X', 'Y')",
        ] {
            RowQuery::parse(sql, &input()).unwrap();
        }
        let deep = format!("SELECT {}delay{} AS x FROM input", "(".repeat(5000), ")".repeat(5000));
        assert_eq!(RowQuery::parse(&deep, &input()).unwrap_err().kind(), ErrorKind::Usage);
    }

    #[test]
    fn columns_that_can_not_be_null_are_known() {
        let query = RowQuery::parse(
            "SELECT *, delay > 15 AS late, EXTRACT(HOUR FROM date) AS hour, delay / 2 AS half, origin = 'X' AS x, upper(origin) AS date2, \
             CASE WHEN origin IS NULL THEN 1 ELSE 0 END AS missing FROM input",
            &input(),
        )
        .unwrap();
        let known: Vec<&str> = ["date", "delay", "origin", "late", "hour", "half", "x", "date2", "missing"]
            .into_iter()
            .filter(|n| query.is_not_null(n))
            .collect();
        assert_eq!(known, ["date", "delay", "late", "hour", "missing"]);
    }
}
