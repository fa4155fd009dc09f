-- Everything the catalog says about one schema, a line of text each, to compare two ways of making
-- it. Unlike the check of a serving process this includes comments, privileges, owners and storage
-- parameters. Run with search_path set to the schema.
WITH space AS (
    SELECT oid, nspname, nspacl, nspowner::regrole::text AS owner
    FROM pg_namespace
    WHERE nspname = %(schema)s
),
relations AS (
    SELECT c.*
    FROM pg_class AS c
    INNER JOIN space ON space.oid = c.relnamespace
),
described AS (
    SELECT 'pg_class'::regclass AS catalog, oid, relname::text AS name FROM relations
    UNION ALL
    SELECT 'pg_proc'::regclass, p.oid, p.oid::regprocedure::text
    FROM pg_proc AS p
    INNER JOIN space ON space.oid = p.pronamespace
    UNION ALL
    SELECT 'pg_type'::regclass, t.oid, t.typname::text
    FROM pg_type AS t
    INNER JOIN space ON space.oid = t.typnamespace
    UNION ALL
    SELECT 'pg_constraint'::regclass, c.oid, c.conname::text
    FROM pg_constraint AS c
    INNER JOIN space ON space.oid = c.connamespace
    UNION ALL
    SELECT 'pg_trigger'::regclass, t.oid, t.tgname::text
    FROM pg_trigger AS t
    INNER JOIN relations AS r ON r.oid = t.tgrelid
    UNION ALL
    SELECT 'pg_namespace'::regclass, oid, 'schema' FROM space
)
SELECT format('schema owner=%%s acl=%%s', owner, nspacl) AS line
FROM space

UNION ALL

SELECT format(
    'relation %%s kind=%%s persistence=%%s owner=%%s options=%%s acl=%%s method=%%s rls=%%s,%%s identity=%%s',
    relname, relkind, relpersistence, relowner::regrole, reloptions, relacl,
    (SELECT m.amname FROM pg_am AS m WHERE m.oid = relam),
    relrowsecurity, relforcerowsecurity, relreplident
)
FROM relations
WHERE relkind <> 't'

UNION ALL

SELECT format(
    'toast of %%s options=%%s', r.relname, t.reloptions
)
FROM relations AS r
INNER JOIN pg_class AS t ON t.oid = r.reltoastrelid

UNION ALL

SELECT format(
    'column %%s.%%s at=%%s type=%%s notnull=%%s collation=%%s identity=%%s generated=%%s default=%%s '
    'storage=%%s compression=%%s statistics=%%s options=%%s acl=%%s',
    r.relname, a.attname, a.attnum, format_type(a.atttypid, a.atttypmod), a.attnotnull,
    (SELECT l.collname FROM pg_collation AS l WHERE l.oid = a.attcollation),
    a.attidentity, a.attgenerated,
    (
        SELECT pg_get_expr(d.adbin, d.adrelid)
        FROM pg_attrdef AS d
        WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum
    ),
    a.attstorage, a.attcompression, coalesce(a.attstattarget, -1), a.attoptions, a.attacl
)
FROM pg_attribute AS a
INNER JOIN relations AS r ON r.oid = a.attrelid
WHERE a.attnum > 0 AND r.relkind <> 't'

UNION ALL

SELECT format(
    'constraint %%s on=%%s validated=%%s deferrable=%%s,%%s %%s',
    c.conname, (SELECT r.relname FROM relations AS r WHERE r.oid = c.conrelid), c.convalidated,
    c.condeferrable, c.condeferred, pg_get_constraintdef(c.oid)
)
FROM pg_constraint AS c
INNER JOIN space ON space.oid = c.connamespace

UNION ALL

SELECT format(
    'index valid=%%s ready=%%s clustered=%%s %%s',
    i.indisvalid, i.indisready, i.indisclustered, pg_get_indexdef(i.indexrelid)
)
FROM pg_index AS i
INNER JOIN relations AS r ON r.oid = i.indrelid AND r.relkind <> 't'

UNION ALL

SELECT format('trigger enabled=%%s %%s', t.tgenabled, pg_get_triggerdef(t.oid))
FROM pg_trigger AS t
INNER JOIN relations AS r ON r.oid = t.tgrelid

UNION ALL

-- The definition holds body, volatility, security, cost, settings and defaults of arguments.
SELECT format('function owner=%%s acl=%%s %%s', p.proowner::regrole, p.proacl, pg_get_functiondef(p.oid))
FROM pg_proc AS p
INNER JOIN space ON space.oid = p.pronamespace
WHERE p.prokind IN ('f', 'p')

UNION ALL

SELECT format('view %%s %%s', relname, pg_get_viewdef(oid))
FROM relations
WHERE relkind IN ('v', 'm')

UNION ALL

SELECT format('rule %%s %%s', r.relname, pg_get_ruledef(w.oid))
FROM pg_rewrite AS w
INNER JOIN relations AS r ON r.oid = w.ev_class

UNION ALL

SELECT format('policy %%s on=%%s', p.polname, r.relname)
FROM pg_policy AS p
INNER JOIN relations AS r ON r.oid = p.polrelid

UNION ALL

SELECT format(
    'sequence %%s start=%%s by=%%s min=%%s max=%%s cache=%%s cycle=%%s',
    r.relname, s.seqstart, s.seqincrement, s.seqmin, s.seqmax, s.seqcache, s.seqcycle
)
FROM pg_sequence AS s
INNER JOIN relations AS r ON r.oid = s.seqrelid

UNION ALL

SELECT format(
    'type %%s kind=%%s owner=%%s acl=%%s base=%%s labels=%%s',
    t.typname, t.typtype, t.typowner::regrole, t.typacl, format_type(t.typbasetype, t.typtypmod),
    (SELECT array_agg(e.enumlabel ORDER BY e.enumsortorder) FROM pg_enum AS e WHERE e.enumtypid = t.oid)
)
FROM pg_type AS t
INNER JOIN space ON space.oid = t.typnamespace

UNION ALL

SELECT format('comment on %%s %%s column=%%s %%s', o.catalog, o.name, d.objsubid, d.description)
FROM described AS o
INNER JOIN pg_description AS d ON d.classoid = o.catalog AND d.objoid = o.oid
ORDER BY 1;
