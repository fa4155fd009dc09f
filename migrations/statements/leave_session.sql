RESET lock_timeout;
RESET statement_timeout;
RESET search_path;
RESET standard_conforming_strings;
RESET quote_all_identifiers;
