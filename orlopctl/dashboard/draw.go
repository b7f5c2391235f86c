package dashboard

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"charm.land/lipgloss/v2"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/disk/layout"
)

// The screens are designed for 80 columns and 24 rows. In a terminal below this minimum, Draw
// returns only a message.
const leastWidth, leastHeight = 72, 10

// tone is the meaning of a text, which a color shows. The text alone contains the same information.
type tone int

const (
	plain tone = iota
	good
	wait
	bad
	faint
	strong
)

var styles = [...]lipgloss.Style{
	good:   lipgloss.NewStyle().Foreground(lipgloss.Green),
	wait:   lipgloss.NewStyle().Foreground(lipgloss.Yellow),
	bad:    lipgloss.NewStyle().Foreground(lipgloss.Red),
	faint:  lipgloss.NewStyle().Faint(true),
	strong: lipgloss.NewStyle().Bold(true),
}

func (s State) paint(t tone, text string) string {
	if !s.colour || t == plain || text == "" {
		return text
	}
	return styles[t].Render(text)
}

// Draw returns the screen: as many rows as the terminal has, each at most as wide as the terminal.
func (s State) Draw() string {
	if s.width < leastWidth || s.height < leastHeight {
		return fit(fmt.Sprintf("%d×%d is too small, 80×24 is good", s.width, s.height), s.width)
	}
	var body []string
	switch {
	case s.help:
		body = s.drawHelp()
	case s.screen == overview:
		body = s.drawOverview()
	default:
		body = append([]string{s.drawSubtitle()}, [...]func() []string{
			services: s.drawServices, logs: s.drawLog, events: s.drawEvents, upgrade: s.drawUpgrade,
		}[s.screen]()...)
	}
	rows := make([]string, s.height)
	rows[0] = s.drawTitle()
	copy(rows[1:s.height-1], body)
	rows[s.height-1] = s.paint(faint, fit(s.keys(), s.width))
	return strings.Join(rows, "\n")
}

// rows returns the number of rows between the subtitle and the last row, at least 1.
func (s State) rows() int { return max(1, s.height-3) }

func (s State) drawTitle() string {
	var title strings.Builder
	left := s.width
	for i, name := range screenNames {
		text, t := fmt.Sprintf(" %d %s ", i+1, name), faint
		if screen(i) == s.screen {
			text, t = fmt.Sprintf("[%d %s]", i+1, name), strong
		}
		title.WriteString(s.paint(t, text))
		left -= len(text)
	}
	return title.String() + s.paint(faint, fit(fmt.Sprintf("   machine %d of %d", s.chosen+1, len(s.machines)), left))
}

// drawSubtitle returns the name and the state of the machine on the screen.
func (s State) drawSubtitle() string {
	m := s.machines[s.chosen]
	state := m.state()
	if m.link == away {
		state.text = "away, tried again at " + m.next.UTC().Format(time.TimeOnly) + ": " + m.reason
	}
	return s.line([]column{{width: 16}, {width: 22}, {}}, text{m.name(), strong}, text{m.address, plain}, state)
}

func (s State) keys() string {
	return [screens]string{
		overview: "j/k choose  enter services  tab/1-5 screen  n/p machine  ? help  q quit",
		services: "j/k choose  enter log  tab/1-5 screen  n/p machine  ? help  q quit",
		logs:     "j/k scroll  G follow  h/l service  tab/1-5 screen  n/p machine  ? help  q quit",
		events:   "j/k scroll  G follow  tab/1-5 screen  n/p machine  ? help  q quit",
		upgrade:  "tab/1-5 screen  n/p machine  ? help  q quit",
	}[s.screen]
}

func (s State) drawHelp() []string {
	var rows []string
	for _, key := range []struct{ keys, what string }{
		{"", "The dashboard is read-only: no key changes a machine."},
		{"1 … 5", "overview, services, logs, events, upgrade"},
		{"tab, shift+tab", "the next, the previous screen"},
		{"n, p", "the next, the previous machine"},
		{"j, k, down, up", "choose a machine or a service, or scroll"},
		{"space, pgdown", "a page down"},
		{"b, pgup", "a page up"},
		{"g, home", "the beginning"},
		{"G, end", "the end, which is followed as it grows"},
		{"enter", "a machine's services, a service's log"},
		{"h, l, left, right", "the log of the previous, the next service"},
		{"?", "this list"},
		{"q, ctrl+c", "quit"},
		{"", "A machine that is away is connected to again by itself."},
	} {
		rows = append(rows, s.line([]column{{width: 18}, {}}, text{key.keys, strong}, text{key.what, plain}))
	}
	return rows
}

// column is a column of a table. The last column of a table takes the remaining width.
type column struct {
	title string
	width int
}

// text is a cell of a table.
type text struct {
	text string
	tone tone
}

// line returns a row of a table.
func (s State) line(columns []column, cells ...text) string {
	var row strings.Builder
	left := s.width
	for i, cell := range cells {
		if i == len(columns)-1 {
			row.WriteString(s.paint(cell.tone, fit(cell.text, left)))
			continue
		}
		padded := pad(cell.text, min(columns[i].width, left))
		shown := strings.TrimRight(padded, " ")
		row.WriteString(s.paint(cell.tone, shown) + padded[len(shown):] + " ")
		left -= columns[i].width + 1
	}
	return strings.TrimRight(row.String(), " ")
}

func (s State) head(columns []column) string {
	var cells []text
	for _, c := range columns {
		cells = append(cells, text{c.title, faint})
	}
	return s.line(columns, cells...)
}

// window returns at most height rows of a list, with row number at among them.
func window(rows []string, at, height int) []string {
	height = min(height, len(rows))
	from := max(0, min(at-height/2, len(rows)-height))
	return rows[from : from+height]
}

// mark returns the marker before the selected row.
func mark(chosen bool) text {
	if chosen {
		return text{">", strong}
	}
	return text{}
}

func (s State) drawOverview() []string {
	extra := max(0, s.width-80) / 4
	columns := []column{
		{"", 1}, {"NAME", 13 + extra}, {"ADDRESS", 15 + extra}, {"VERSION", 9}, {"SLOT", 4}, {"UP", 6}, {"MEM", 4}, {"LOAD", 5}, {"STATE", 0},
	}
	var list []string
	for i, m := range s.machines {
		up, used, load := "-", "-", "-"
		if m.system.CPUs > 0 {
			up, load = span(time.Duration(m.system.UptimeSeconds)*time.Second), fmt.Sprintf("%.2f", m.system.Load1)
		}
		if m.memory.Total > 0 {
			used = fmt.Sprintf("%.0f%%", 100*float64(m.memory.Total-m.memory.Available)/float64(m.memory.Total))
		}
		name := text{m.name(), plain}
		if i == s.chosen {
			name.tone = strong
		}
		list = append(list, s.line(columns, mark(i == s.chosen), name, text{m.address, plain}, text{orDash(m.version.GetVersion()), plain},
			text{orDash(m.version.GetSlot()), plain}, text{up, plain}, text{used, plain}, text{load, plain}, m.state()))
	}
	rows := append([]string{s.head(columns)}, window(list, s.chosen, (s.height-2)/2)...)
	return append(append(rows, ""), s.drawMachine()...)
}

// drawMachine returns the rows about the selected machine below the list.
func (s State) drawMachine() []string {
	m := s.machines[s.chosen]
	title := m.name()
	if title != m.address {
		title += " at " + m.address
	}
	if m.context != "" && m.context != m.name() {
		title += ", context " + m.context
	}
	rows := []string{s.paint(strong, fit(title, s.width))}
	if v := m.version; v != nil {
		line := fmt.Sprintf("Orlop %s, Kubernetes %s, Linux %s, profile %s", v.Version, v.Kubernetes, v.Kernel, v.Profile)
		if v.BootMedium != "" {
			line += "; not installed, runs from " + v.BootMedium
		}
		rows = append(rows, fit(line, s.width))
	}
	if m.system.CPUs > 0 && m.memory.Total > 0 {
		available, total := layout.FormatSize(uint64(max(0, m.memory.Available))), layout.FormatSize(uint64(m.memory.Total))
		rows = append(rows, fit(fmt.Sprintf("%d processors; %s of %s memory are available", m.system.CPUs, available, total), s.width))
	}
	if m.link == away {
		rows = append(rows, "")
		for _, row := range prose("away: "+m.reason, s.width) {
			rows = append(rows, s.paint(bad, row))
		}
		return append(rows, "It is tried again at "+m.next.UTC().Format(time.TimeOnly)+" UTC.")
	}
	for _, source := range append([]string{Version, Health}, Topics...) {
		if why := m.problems[source]; why != "" {
			rows = append(rows, s.paint(bad, fit("no "+source+": "+why, s.width)))
		}
	}
	if m.health == nil {
		return rows
	}
	columns := []column{{"CHECK", 24}, {"STATE", 5}, {"SINCE", 6}, {"DETAIL", 0}}
	rows = append(rows, "", s.head(columns))
	for _, c := range m.health.Checks {
		state := text{"ok", good}
		if !c.Ok {
			state = text{"waits", wait}
		}
		rows = append(rows, s.line(columns, text{c.Name, plain}, state, text{s.sinceStamp(c.Since), plain}, text{c.Detail, plain}))
	}
	return rows
}

// name returns the machine's own name. If it is unknown, name returns the name of the context, or
// the address.
func (m machine) name() string { return cmp.Or(m.version.GetMachine(), m.context, m.address) }

// state returns the state of a machine in a single line.
func (m machine) state() text {
	switch {
	case m.link == away:
		return text{"away: " + m.reason, bad}
	case m.link == connecting:
		return text{"connecting", wait}
	case m.health == nil:
		return text{orDash(m.problems[Health]), wait}
	case m.health.Healthy:
		return text{"healthy", good}
	}
	var missing []string
	for _, c := range m.health.Checks {
		if !c.Ok {
			missing = append(missing, c.Name)
		}
	}
	return text{"waits: " + strings.Join(missing, ", "), wait}
}

func (s State) drawServices() []string {
	m := s.machines[s.chosen]
	if len(m.services) == 0 {
		return s.nothing(m, "services")
	}
	columns := []column{{"", 1}, {"SERVICE", 25}, {"STATE", 9}, {"RESTARTS", 8}, {"SINCE", 6}, {"DETAIL", 0}}
	var list []string
	at := 0
	for i, one := range m.services {
		name := text{one.Name, plain}
		if i == m.service {
			at, name.tone = len(list), strong
		}
		tone, known := map[string]tone{"running": good, "waiting": wait, "starting": wait, "stopping": wait, "stopped": faint}[one.State]
		if !known {
			tone = bad
		}
		list = append(list, s.line(columns, mark(i == m.service), name, text{one.State, tone}, text{fmt.Sprint(one.Restarts), plain},
			text{s.since(one.Since), plain}, text{one.Detail, plain}))
		for _, c := range one.Components {
			if c.Name == "" || c.Name == one.Name {
				continue // the process itself; the row of the service shows it
			}
			state := text{"ready", good}
			if !c.Ready {
				state = text{"not ready", wait}
			}
			list = append(list, s.line(columns, text{}, text{"└ " + c.Name, plain}, state, text{"-", faint},
				text{s.since(c.Since), plain}, text{c.Detail, plain}))
		}
	}
	return append([]string{s.head(columns)}, window(list, at, s.rows()-1)...)
}

func (s State) drawLog() []string {
	m := s.machines[s.chosen]
	if len(m.services) == 0 {
		return s.nothing(m, "services")
	}
	of := s.Wants().Service
	if why := m.problems[Logs]; why != "" {
		return prose("no log of "+of+": "+why, s.width)
	}
	return s.drawLines(s.log, of)
}

func (s State) drawEvents() []string {
	m := s.machines[s.chosen]
	if len(m.events.kept) == 0 {
		return s.nothing(m, Events)
	}
	return s.drawLines(m.events, Events)
}

// drawLines returns the visible part of a scrollable text, below a row with the position.
func (s State) drawLines(of lines, name string) []string {
	title := name + ", times in UTC, followed"
	if of.held {
		title = fmt.Sprintf("%s, times in UTC, from line %d of %d on; G follows it", name, of.top+1, len(of.kept))
	}
	return append([]string{s.paint(faint, fit(title, s.width))}, of.draw(s.width, s.page(), s.paint)...)
}

// nothing returns the rows of a screen without data. They show the reason, if it is known.
func (s State) nothing(m machine, source string) []string {
	why := m.problems[source]
	if why == "" {
		return []string{"", s.paint(faint, "nothing has come yet")}
	}
	rows := []string{""}
	for _, row := range prose("no "+source+": "+why, s.width) {
		rows = append(rows, s.paint(bad, row))
	}
	return rows
}

func (s State) drawUpgrade() []string {
	m := s.machines[s.chosen]
	u := m.upgrade
	if u == nil {
		return s.nothing(m, Upgrade)
	}
	rows := []string{""}
	add := func(name, value string) {
		if value == "" {
			return
		}
		for _, row := range prose(value, s.width-12) {
			rows = append(rows, s.line([]column{{width: 11}, {}}, text{name, faint}, text{row, plain}))
			name = ""
		}
	}
	add("RUNNING", u.Running)
	if u.Phase == "" {
		add("UPGRADE", "none yet")
		return rows
	}
	add("FROM", u.From)
	add("TO", u.To)
	add("PHASE", u.Phase)
	add("NOW", u.Operation)
	if u.Total > 0 {
		add("", bar(u, s.width-40))
	}
	add("WAITS FOR", u.WaitingFor)
	if u.Tries > 0 {
		add("TRIES", fmt.Sprint(u.Tries))
	}
	add("REASON", u.Reason)
	if u.DataRestoredFrom != nil {
		add("DROPPED", fmt.Sprintf("%d revisions of the cluster's data, which are restored as of %s UTC", u.LostRevisions, date(u.DataRestoredFrom)))
	}
	if u.Started != nil {
		add("BEGAN", date(u.Started)+" UTC")
	}
	if u.Ended != nil {
		add("ENDED", date(u.Ended)+" UTC")
	}
	if left := s.rows() - len(rows) - 2; len(u.Log) > 0 && left > 0 {
		rows = append(rows, "", s.paint(faint, "the end of the log of the start that failed"))
		for _, l := range u.Log[max(0, len(u.Log)-left):] {
			rows = append(rows, fit(l, s.width))
		}
	}
	return rows
}

// bar returns the progress of an operation as a bar of the given width and a few words.
func bar(u *api.UpgradeStatus, width int) string {
	part := max(0, min(1, float64(u.Done)/float64(u.Total)))
	full := int(part * float64(width))
	return fmt.Sprintf("[%s%s] %3.0f%% of %s", strings.Repeat("#", full), strings.Repeat(".", width-full), 100*part, layout.FormatSize(uint64(u.Total)))
}

// The method since returns the duration from the time at until now. It returns "-" if at is
// unknown.
func (s State) since(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return span(s.now.Sub(at))
}

func (s State) sinceStamp(at *timestamppb.Timestamp) string {
	if at == nil {
		return "-"
	}
	return s.since(at.AsTime())
}

// span formats a duration in at most six characters: "12s", "5m", "3h07m", "12d3h", "120d".
func span(d time.Duration) string {
	d = max(0, d)
	hours := int(d.Hours())
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case hours < 24:
		return fmt.Sprintf("%dh%02dm", hours, int(d.Minutes())%60)
	case hours < 100*24:
		return fmt.Sprintf("%dd%dh", hours/24, hours%24)
	}
	return fmt.Sprintf("%dd", hours/24)
}

func orDash(text string) string { return cmp.Or(text, "-") }
