package host

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// lines calls the function each with the fields of every line of a file below /proc, and skips
// empty lines.
func (r *reader) lines(name string, each func(fields []string) error) error {
	text, err := os.ReadFile(filepath.Join(r.proc, name))
	if err != nil {
		return err
	}
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		if fields := strings.Fields(s.Text()); len(fields) > 0 {
			if err := each(fields); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

var memoryName = strings.NewReplacer(":", "", "(", "_", ")", "")

func (r *reader) meminfo() error {
	return r.lines("meminfo", func(fields []string) error { // "Active(anon):  1234 kB"
		if len(fields) < 2 {
			return fmt.Errorf("unknown line %q", fields)
		}
		value, err := strconv.ParseFloat(fields[1], 64)
		if err != nil {
			return err
		}
		name := "node_memory_" + memoryName.Replace(fields[0])
		if len(fields) > 2 {
			name, value = name+"_bytes", value*1024
		}
		r.Gauge(name, "Memory information field "+strings.TrimPrefix(name, "node_memory_")+".", value)
		return nil
	})
}

// vmstatFields matches the fields that node_exporter selects by default.
var vmstatFields = regexp.MustCompile(`^(oom_kill|pgpg|pswp|pg.*fault).*`)

func (r *reader) vmstat() error {
	return r.lines("vmstat", func(fields []string) error {
		if len(fields) != 2 || !vmstatFields.MatchString(fields[0]) {
			return nil
		}
		value, err := strconv.ParseFloat(fields[1], 64)
		if err != nil {
			return err
		}
		r.Untyped("node_vmstat_"+fields[0], "/proc/vmstat information field "+fields[0]+".", value)
		return nil
	})
}

func (r *reader) filefd() error {
	return r.lines("sys/fs/file-nr", func(fields []string) error {
		if len(fields) != 3 {
			return fmt.Errorf("unknown line %q", fields)
		}
		for i, name := range map[int]string{0: "allocated", 2: "maximum"} {
			value, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return err
			}
			r.Gauge("node_filefd_"+name, "File descriptor statistics: "+name+".", value)
		}
		return nil
	})
}
