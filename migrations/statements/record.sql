INSERT INTO flow_migrations (version, sha256) VALUES ({version}, {sha256});
