SELECT 1 / count(*) FROM (
    SELECT FROM {table} AS l
    WHERE l.name = $1 AND l.version = '{version}' AND l.ends >= {clock} / 1000 AND CASE l.kind
        WHEN 'mutex' THEN l.value = $2::text || '#' || $3::bigint
        WHEN 'reentrant mutex' THEN chr(10) || l.value LIKE '%' || chr(10) || '#fence ' || $3::bigint || chr(10) || '%'
            AND EXISTS (
                SELECT FROM string_to_table(l.value, chr(10)) AS line
                WHERE starts_with(line, $2::text || ' '))
        ELSE $3::bigint <= split_part(split_part(l.value, chr(10), 1), ' ', 2)::bigint AND EXISTS (
            SELECT FROM string_to_table(l.value, chr(10)) WITH ORDINALITY AS part (line, at)
            WHERE at > 1 AND split_part(line, ' ', 1) = $3::bigint::text
                AND split_part(line, ' ', 4) = $2::text
                AND CASE WHEN split_part(line, ' ', 3) <> '' THEN
                    split_part(line, ' ', 3)::bigint >= {clock} / 1000 END)
        END
    FOR KEY SHARE) AS held
