package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/structpb"
	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
)

func getCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	return &cobra.Command{
		Use:         "get [TOPIC]",
		Annotations: calls(api.Machine_Get_FullMethodName),
		Short:       "Show one topic of the machine's state, or the list of topics",
		Args:        cobra.MaximumNArgs(1),

		ValidArgsFunction: completed(conn, topicNames),
		RunE: func(_ *cobra.Command, args []string) error {
			return conn.Call(func(ctx context.Context, c *client.Client) error {
				answer, err := c.Machine.Get(ctx, &api.GetRequest{Topic: first(args)})
				if err != nil {
					return topicHint(err, first(args))
				}
				if !ios.Human() {
					return ios.Print(answer, nil)
				}
				for _, topic := range answer.Topics {
					ios.Println(topic)
				}
				if len(args) == 0 {
					return nil
				}
				return printValue(ios, answer.Topic, answer.Value)
			})
		},
	}
}

func watchCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	return &cobra.Command{
		Use:         "watch TOPIC",
		Annotations: calls(api.Machine_Watch_FullMethodName),
		Short:       "Show a topic of the machine's state now and after every change",
		Args:        cobra.ExactArgs(1),

		ValidArgsFunction: completed(conn, topicNames),
		RunE: func(_ *cobra.Command, args []string) error {
			return conn.Stream(func(ctx context.Context, c *client.Client) error {
				stream, err := c.Machine.Watch(ctx, &api.GetRequest{Topic: args[0]})
				if err != nil {
					return err
				}
				return topicHint(connect.Each(stream.Recv, func(s *api.TopicValue) error {
					return ios.PrintNext(s, func() error {
						ios.Printf("# %s, revision %d\n", s.Topic, s.Revision)
						return printValue(ios, s.Topic, s.Value)
					})
				}), args[0])
			})
		},
	}
}

func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

// printValue prints the value of a topic, which may have any shape. It prints a list of objects as
// a table, and any other value as YAML.
func printValue(ios *iostreams.Streams, topic string, value *structpb.Value) error {
	if list := value.GetListValue().GetValues(); len(list) > 0 && allObjects(list) {
		return iostreams.DrawTable(ios.Out, func(w *tabwriter.Writer) { tableOf(w, list, layouts[topic]) })
	}
	text, err := yaml.Marshal(value.AsInterface())
	if err != nil {
		return fmt.Errorf("value: cannot format: %w", err)
	}
	ios.Printf("%s", text)
	return nil
}

func allObjects(list []*structpb.Value) bool {
	for _, v := range list {
		if v.GetStructValue() == nil {
			return false
		}
	}
	return true
}

// tableLayout describes the columns of a topic's table. The formats json and yaml do not use it.
type tableLayout struct {
	lead  []string // the first columns, if they exist
	bytes []string // fields that hold a number of bytes
}

// layouts maps topics to their layouts.
var layouts = map[string]tableLayout{
	"cgroups":     {lead: []string{"path", "tasks", "memory"}, bytes: []string{"anonymous", "memory", "memoryMax", "memoryPeak"}},
	"filesystems": {lead: []string{"target", "type", "size", "used", "available", "source"}, bytes: []string{"available", "size", "used"}},
	"inventory":   {lead: []string{"key", "address", "serial", "product", "cpus", "memoryMiB", "disks", "nics"}},
	"lldp":        {lead: []string{"link", "systemName", "port", "chassis", "vlan", "ttl", "expires"}},
	"mounts":      {lead: []string{"target", "type", "source", "flags"}},
	"modules":     {bytes: []string{"size"}},
	"volumes":     {lead: []string{"name", "use", "mounted", "size", "partition", "path", "disk"}, bytes: []string{"size"}},
	"wear":        {lead: []string{"path", "serial", "usedPercent", "sparePercent", "errors", "temperature", "problem", "remark"}},
	"processes":   {bytes: []string{"anonymous", "file"}},
}

// place returns the rank by which columns are sorted: the leading columns come first, then "name",
// then all others.
func (l tableLayout) place(column string) int {
	if i := slices.Index(l.lead, column); i >= 0 {
		return i
	}
	if column == "name" {
		return len(l.lead)
	}
	return len(l.lead) + 1
}

// tableOf writes a row per object. The columns are all fields of the objects: the leading columns,
// then "name", then the others in alphabetical order.
func tableOf(w io.Writer, list []*structpb.Value, layout tableLayout) {
	seen := map[string]bool{}
	var columns []string
	for _, v := range list {
		for key := range v.GetStructValue().GetFields() {
			if !seen[key] {
				seen[key] = true
				columns = append(columns, key)
			}
		}
	}
	slices.SortFunc(columns, func(a, b string) int {
		return cmp.Or(cmp.Compare(layout.place(a), layout.place(b)), cmp.Compare(a, b))
	})
	head := make([]string, len(columns))
	for i, c := range columns {
		head[i] = strings.ToUpper(c)
	}
	iostreams.Row(w, head...)
	for _, v := range list {
		cells := make([]string, len(columns))
		for i, c := range columns {
			field := v.GetStructValue().GetFields()[c]
			if cells[i] = cell(field); slices.Contains(layout.bytes, c) && field != nil {
				cells[i] = format.Size(int64(field.GetNumberValue()))
			}
		}
		iostreams.Row(w, cells...)
	}
}

// cell returns a value as text in a single line.
func cell(v *structpb.Value) string {
	switch kind := v.GetKind().(type) {
	case nil, *structpb.Value_NullValue:
		return "-"
	case *structpb.Value_StringValue:
		return format.OrDash(kind.StringValue)
	case *structpb.Value_ListValue:
		var parts []string
		for _, part := range kind.ListValue.GetValues() {
			// A list of named objects, for example the components of a service, would make the row
			// too long. The cell has only their names; -o yaml shows the objects.
			if name := part.GetStructValue().GetFields()["name"].GetStringValue(); name != "" {
				parts = append(parts, name)
				continue
			}
			parts = append(parts, cell(part))
		}
		return format.OrDash(strings.Join(parts, ","))
	}
	text, err := json.Marshal(v.AsInterface())
	if err != nil {
		return "?" // for NaN and infinity, which no topic has
	}
	return string(text)
}

func eventsCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var follow bool
	var after uint64
	c := &cobra.Command{
		Use: "events", Short: "Show the events of the machine", Args: cobra.NoArgs,
		Annotations: calls(api.Machine_Events_FullMethodName),
		RunE: func(*cobra.Command, []string) error {
			return conn.Stream(func(ctx context.Context, c *client.Client) error {
				stream, err := c.Machine.Events(ctx, &api.EventsRequest{Follow: follow, After: after})
				if err != nil {
					return err
				}
				return connect.Each(stream.Recv, func(e *api.Event) error {
					return ios.PrintNext(e, func() error {
						ios.Println(eventLine(e))
						return nil
					})
				})
			})
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "wait for new events and print them")
	c.Flags().Uint64Var(&after, "after", 0, "print only events after this cursor (the field `cursor` of -o json)")
	return c
}

func eventLine(e *api.Event) string {
	return fmt.Sprintf("%s  %-9s %-20s %s", format.Stamp(e.Time), format.Clean(e.Kind), format.Clean(e.Source), format.Clean(e.Message))
}
