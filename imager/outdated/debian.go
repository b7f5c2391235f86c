package outdated

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"pault.ag/go/debian/version"

	"github.com/orlop-os/orlop/imager/debian"
)

// securitySuffix is the end of the name of a suite that contains only security updates.
const securitySuffix = "-security"

// debianItem compares a pinned package with the offers of the archive. An offer belongs to the
// package if it has the wanted name. For a kernel, this is the name of a meta package with the
// version of the kernel.
func debianItem(p debian.Package, file string, offers []debian.Offer) (Item, error) {
	i := Item{Kind: KindDebian, Name: p.Name, Component: ComponentOf(p.Want), Files: []string{file}, Pinned: p.Version}
	pinned, err := version.Parse(p.Version)
	if err != nil {
		return i, fmt.Errorf("%s: %s: %w", file, p.Name, err)
	}
	newest, fixed, known := pinned, pinned, false
	for _, o := range offers {
		if o.Package != p.Want {
			continue
		}
		known = true
		offered, err := version.Parse(o.Version)
		if err != nil {
			return i, fmt.Errorf("apt's lists: %s: %w", o.Package, err)
		}
		if version.Compare(offered, newest) > 0 {
			newest, i.Newest = offered, o.Version
		}
		if strings.HasSuffix(o.Suite, securitySuffix) && version.Compare(offered, fixed) > 0 {
			fixed, i.Fixed = offered, o.Version
		}
	}
	if !known {
		i.unanswered = "apt's lists do not contain it"
	}
	return i, nil
}

// suiteItem reports until when Debian maintains the suite codename, and which released suite is
// newer. The table is from the package distro-info-data.
func suiteItem(table io.Reader, codename, file string, now time.Time) (Item, error) {
	i := Item{Kind: KindSuite, Name: codename, Component: "Debian", Files: []string{file}, Pinned: codename}
	reader := csv.NewReader(table)
	reader.FieldsPerRecord = -1 // undecided dates at the end of a row are missing
	rows, err := reader.ReadAll()
	if err == nil && len(rows) == 0 {
		err = errors.New("is empty")
	}
	if err != nil {
		return i, fmt.Errorf("table of Debian's suites: cannot read: %w", err)
	}
	column := map[string]int{}
	for n, name := range rows[0] {
		column[name] = n
	}
	field := func(row []string, name string) string {
		if n, ok := column[name]; ok && n < len(row) {
			return row[n]
		}
		return ""
	}
	today, found, newest := now.UTC().Format(time.DateOnly), false, ""
	for _, row := range rows[1:] {
		released := field(row, "release")
		if released == "" || released > today {
			continue
		}
		if field(row, "series") == codename {
			found, newest = true, released
			i.Pinned = field(row, "version") + " " + codename
			i.Notes = append(i.Notes, support("support of the security team", field(row, "eol"), today), support("long-term support", field(row, "eol-lts"), today))
			continue
		}
		if found && released > newest {
			newest, i.Newest = released, field(row, "version")+" "+field(row, "series")
		}
	}
	if !found {
		return i, fmt.Errorf("table of Debian's suites: %s is missing", codename)
	}
	return i, nil
}

// support describes until when a team maintains a suite. The dates have the form 2006-01-02.
func support(team, end, today string) string {
	switch {
	case end == "":
		return team + ": end not decided"
	case end < today:
		return team + " ended on " + end
	}
	return team + " until " + end
}
