package main

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"
)

// TestTables checks the columns of the tables of topics. The first columns of the topic filesystems
// are the name and the usage, in readable units. The first column of a topic without a layout is
// the name.
func TestTables(t *testing.T) {
	for topic, c := range map[string]struct {
		fields map[string]any
		want   string
	}{
		"filesystems": {map[string]any{"target": "/var", "source": "/dev/vda5", "type": "ext4", "size": 21474836480, "used": 4096, "available": 0, "inodes": 65536, "inodesUsed": 12},
			"TARGET|TYPE|SIZE|USED|AVAILABLE|SOURCE|INODES|INODESUSED\n/var|ext4|20.0 GiB|4 KiB|-|/dev/vda5|65536|12\n"},
		"modules": {map[string]any{"size": 45056, "name": "veth", "usedBy": []any{}}, "NAME|SIZE|USEDBY\nveth|44 KiB|-\n"},
		"other":   {map[string]any{"size": 45056, "b": 1, "name": "x"}, "NAME|B|SIZE\nx|1|45056\n"},
	} {
		value, err := structpb.NewStruct(c.fields)
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		tableOf(&out, []*structpb.Value{structpb.NewStructValue(value)}, layouts[topic])
		if got := strings.ReplaceAll(out.String(), "\t", "|"); got != c.want {
			t.Errorf("%s:\n%s\nwant:\n%s", topic, got, c.want)
		}
	}
}
