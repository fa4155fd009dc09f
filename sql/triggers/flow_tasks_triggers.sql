-- The triggers of flow_tasks: every new task makes its lane known, whoever inserts it; so does one
-- that is moved to another lane. Claims and releases set none of these columns and fire nothing.
CREATE TRIGGER flow_tasks_lanes
    AFTER INSERT ON flow_tasks REFERENCING NEW TABLE AS new_tasks
    FOR EACH STATEMENT EXECUTE FUNCTION flow_add_lanes();
CREATE TRIGGER flow_tasks_moved
    AFTER UPDATE OF queue, priority, runtime_build ON flow_tasks
    FOR EACH ROW EXECUTE FUNCTION flow_move_lane();
