SELECT 1 FROM {table} WHERE name = {name} AND version = '{version}' AND ends >= {clock} DIV 1000 AND CASE kind
    WHEN 'mutex' THEN value = CONCAT({owner}, '#', {fence})
    WHEN 'reentrant mutex' THEN LOCATE(CONCAT(X'0a', '#fence ', {fence}, X'0a'), CONCAT(X'0a', value)) > 0
        AND LOCATE(CONCAT(X'0a', {owner}, ' '), CONCAT(X'0a', value)) > 0
    ELSE {fence} <= CAST(SUBSTRING_INDEX(SUBSTRING_INDEX(value, X'0a', 1), ' ', -1) AS UNSIGNED)
        AND LOCATE(CONCAT(X'0a', {fence}, ' '), value) > 0
        AND SUBSTRING_INDEX({line}, ' ', -1) = {owner}
        AND CAST(SUBSTRING_INDEX(SUBSTRING_INDEX({line}, ' ', 2), ' ', -1) AS UNSIGNED) >= {clock} DIV 1000
    END LOCK IN SHARE MODE
