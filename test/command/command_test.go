package command

import "testing"

func TestLine(t *testing.T) {
	if got := Line("run", []string{"-a", "", "b/c=1", "two words", "it's"}); got != `run -a '' b/c=1 'two words' 'it'\''s'` {
		t.Error("Line quotes an argument wrongly: " + got)
	}
}
