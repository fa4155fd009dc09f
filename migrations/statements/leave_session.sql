RESET lock_timeout;
RESET statement_timeout;
RESET search_path;
