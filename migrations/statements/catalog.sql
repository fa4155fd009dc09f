-- What a serving process compares with the pinned list in migrations/catalog.txt: every object that
-- flowpg needs in its schema, one row each, with a digest of what matters about it. Read with
-- search_path set to the schema, so that definitions print without its name and the digests are those
-- of any schema and of every server version. Left out on purpose: comments, privileges, storage
-- parameters and objects that flowpg did not make; those are the DBA's.
WITH space AS (
    SELECT oid, nspname
    FROM pg_catalog.pg_namespace
    WHERE nspname = {schema_name}
),
relations AS (
    SELECT c.oid, c.relname, c.relkind, c.relpersistence
    FROM pg_catalog.pg_class AS c
    INNER JOIN space ON space.oid = c.relnamespace
),
objects AS (
    SELECT
        CASE relkind WHEN 'v' THEN 'view' WHEN 'S' THEN 'sequence' ELSE 'table' END AS kind,
        relname::text AS name,
        pg_catalog.concat_ws('|', relkind, relpersistence) AS definition
    FROM relations
    WHERE relkind IN ('r', 'p', 'v', 'm', 'S')

    UNION ALL

    SELECT
        'column',
        r.relname || '.' || a.attname,
        pg_catalog.concat_ws(
            '|',
            pg_catalog.format_type(a.atttypid, a.atttypmod),
            a.attnotnull,
            a.attidentity,
            a.attgenerated,
            (SELECT l.collname FROM pg_catalog.pg_collation AS l WHERE l.oid = a.attcollation),
            (
                SELECT pg_catalog.pg_get_expr(d.adbin, d.adrelid, true)
                FROM pg_catalog.pg_attrdef AS d
                WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum
            )
        )
    FROM pg_catalog.pg_attribute AS a
    INNER JOIN relations AS r ON r.oid = a.attrelid
    WHERE r.relkind IN ('r', 'p', 'v', 'm', 'c') AND a.attnum > 0 AND NOT a.attisdropped

    UNION ALL

    -- From PostgreSQL 18 on NOT NULL is a constraint too (n); the column says it everywhere.
    SELECT
        'constraint',
        r.relname || '.' || c.conname,
        pg_catalog.concat_ws('|', c.convalidated, pg_catalog.pg_get_constraintdef(c.oid, true))
    FROM pg_catalog.pg_constraint AS c
    INNER JOIN relations AS r ON r.oid = c.conrelid
    WHERE c.contype IN ('c', 'f', 'p', 'u', 'x')

    UNION ALL

    SELECT
        'index',
        c.relname::text,
        pg_catalog.concat_ws(
            '|', i.indisvalid, i.indisready, pg_catalog.pg_get_indexdef(i.indexrelid, 0, true)
        )
    FROM pg_catalog.pg_index AS i
    INNER JOIN relations AS r ON r.oid = i.indrelid
    INNER JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid

    UNION ALL

    SELECT
        'trigger',
        r.relname || '.' || t.tgname,
        pg_catalog.concat_ws('|', t.tgenabled, pg_catalog.pg_get_triggerdef(t.oid, true))
    FROM pg_catalog.pg_trigger AS t
    INNER JOIN relations AS r ON r.oid = t.tgrelid
    WHERE NOT t.tgisinternal

    UNION ALL

    SELECT
        'function',
        p.proname || '(' || pg_catalog.pg_get_function_identity_arguments(p.oid) || ')',
        pg_catalog.concat_ws(
            '|',
            pg_catalog.pg_get_function_arguments(p.oid),
            pg_catalog.pg_get_function_result(p.oid),
            (SELECT l.lanname FROM pg_catalog.pg_language AS l WHERE l.oid = p.prolang),
            p.prokind,
            p.provolatile,
            p.proparallel,
            p.prosecdef,
            p.proisstrict,
            p.prosrc,
            pg_catalog.pg_get_function_sqlbody(p.oid),
            (
                SELECT pg_catalog.string_agg(
                    CASE
                        WHEN setting = 'search_path=' || pg_catalog.quote_ident(space.nspname) || ', pg_temp'
                            THEN 'search_path=@'
                        ELSE setting
                    END,
                    '|' ORDER BY setting COLLATE "C"
                )
                FROM pg_catalog.unnest(p.proconfig) AS setting
            )
        )
    FROM pg_catalog.pg_proc AS p
    INNER JOIN space ON space.oid = p.pronamespace

    UNION ALL

    SELECT
        'type',
        t.typname::text,
        pg_catalog.concat_ws(
            '|',
            t.typtype,
            (
                SELECT pg_catalog.string_agg(e.enumlabel, ',' ORDER BY e.enumsortorder)
                FROM pg_catalog.pg_enum AS e
                WHERE e.enumtypid = t.oid
            )
        )
    FROM pg_catalog.pg_type AS t
    INNER JOIN space ON space.oid = t.typnamespace
    WHERE t.typtype IN ('d', 'e') OR (
        t.typtype = 'c' AND EXISTS (
            SELECT FROM pg_catalog.pg_class AS c WHERE c.oid = t.typrelid AND c.relkind = 'c'
        )
    )
)
-- Not md5: a server in FIPS mode refuses it.
SELECT
    kind,
    name,
    pg_catalog.left(
        pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(definition, 'UTF8')), 'hex'), 32
    ) AS digest
FROM objects
ORDER BY 1, 2;
