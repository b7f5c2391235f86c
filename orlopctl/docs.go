package main

import (
	"fmt"
	"io/fs"
	"path"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/config"
)

// page is a document of this project.
type page struct {
	// Name is the path in lower case, without docs/ and .md: "decisions/0014-media".
	Name  string `json:"name"`
	Title string `json:"title"`
	text  string
}

// referencePage is the name of the page with the annotated reference of the configuration. The
// tests of pkg/config check the content of that page.
const referencePage = "config/reference"

func docsCommand(ios *iostreams.Streams) *cobra.Command {
	var search string
	c := &cobra.Command{
		Use:   "docs [PAGE]",
		Short: "Read the documentation, which is part of this tool",
		Long: "Read the documentation, which is part of this tool: the list of its pages without PAGE, or a page as Markdown.\n" +
			"With --search, print the lines that contain a text. The documentation is of the same version as this tool. PAGE\n" +
			"can be shortened to a unique prefix (0014), or be the path of a document (docs/decisions/0014-media.md).",
		Example: "  orlopctl docs runbook\n  orlopctl docs --search rollback",
		Args:    cobra.MaximumNArgs(1),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
			if len(args) == 0 {
				for _, p := range pages() {
					names = append(names, cobra.CompletionWithDesc(p.Name, p.Title))
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			found := pages()
			if len(args) > 0 {
				p, err := pageNamed(args[0], found)
				if err != nil {
					return err
				}
				found = []page{p}
			}
			switch {
			case search != "":
				return printMatches(ios, found, search)
			case len(args) > 0:
				ios.Printf("%s", found[0].text)
				return nil
			case !ios.Human():
				return ios.PrintPlain(found)
			}
			return iostreams.DrawTable(ios.Out, func(w *tabwriter.Writer) {
				iostreams.Row(w, "PAGE", "TITLE")
				for _, p := range found {
					iostreams.Row(w, p.Name, p.Title)
				}
			})
		},
	}
	c.Flags().StringVarP(&search, "search", "s", "", "print the lines of PAGE, or of all pages, that contain this text in lower or upper case")
	return c
}

// pages returns all documents in the order of their paths, and then the reference of the
// configuration.
func pages() []page {
	var all []page
	must(fs.WalkDir(orlop.Documents, ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := orlop.Documents.ReadFile(file)
		if err != nil {
			return err
		}
		first, _, _ := strings.Cut(string(text), "\n")
		all = append(all, page{Name: pageName(file), Title: strings.TrimPrefix(first, "# "), text: string(text)})
		return nil
	}))
	return append(all, page{Name: referencePage, Title: "Every field of the configuration, with its unit and its default", text: config.Reference})
}

func pageName(file string) string {
	file = strings.TrimSuffix(strings.ToLower(path.Clean(file)), path.Ext(file))
	for _, prefix := range []string{"docs/", "pkg/"} {
		file = strings.TrimPrefix(file, prefix)
	}
	return file
}

// pageNamed returns the page with this name or path, or with a unique prefix of the name. It
// returns an error for an unknown or ambiguous name.
func pageNamed(name string, among []page) (page, error) {
	name = pageName(name)
	var found []page
	for _, p := range among {
		if p.Name == name {
			return p, nil
		}
		if strings.HasPrefix(p.Name, name) || strings.HasPrefix(path.Base(p.Name), name) {
			found = append(found, p)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return page{}, &exit.Error{Code: exit.Usage, Err: fmt.Errorf("page %q: it does not exist", name), Hint: "`orlopctl docs` lists the pages; `orlopctl docs --search` searches them"}
	}
	var names []string
	for _, p := range found {
		names = append(names, p.Name)
	}
	return page{}, &exit.Error{Code: exit.Usage, Err: fmt.Errorf("page %q: the name is ambiguous: %s", name, strings.Join(names, ", "))}
}

// match is a line that contains the search text.
type match struct {
	Page string `json:"page"`
	Line int    `json:"line"` // from 1
	Text string `json:"text"`
}

func printMatches(ios *iostreams.Streams, among []page, word string) error {
	matches := []match{}
	for _, p := range among {
		n := 0
		for line := range strings.Lines(p.text) {
			n++
			if strings.Contains(strings.ToLower(line), strings.ToLower(word)) {
				matches = append(matches, match{p.Name, n, strings.TrimSpace(line)})
			}
		}
	}
	if !ios.Human() {
		return ios.PrintPlain(matches)
	}
	for _, m := range matches {
		ios.Printf("%s:%d: %s\n", m.Page, m.Line, m.Text)
	}
	if len(matches) == 0 {
		return &exit.Error{Code: exit.Failure, Err: fmt.Errorf("docs: %q is in no page", word), Hint: "try a part of the word"}
	}
	return nil
}
