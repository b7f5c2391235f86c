package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
)

func manCommand(ios *iostreams.Streams) *cobra.Command {
	var out string
	c := &cobra.Command{
		Use:   "man --out DIRECTORY",
		Short: "Write the man pages of this tool",
		Long:  "Write the man pages of this tool, one page per command (section 1). The pages depend only on the version of the tool.",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := os.MkdirAll(out, 0o755); err != nil {
				return fmt.Errorf("directory: cannot create: %w", err)
			}
			n, err := writeManPages(c.Root(), out)
			if err == nil {
				ios.Printf("wrote %s to %s\n", format.Count(n, "page"), out)
			}
			return err
		},
	}
	c.Flags().StringVar(&out, "out", "", "directory for the files")
	must(c.MarkFlagRequired("out"))
	return c
}

// writeManPages writes the pages of a command and all its subcommands, and returns the number of
// pages.
func writeManPages(c *cobra.Command, directory string) (int, error) {
	file := filepath.Join(directory, strings.ReplaceAll(c.CommandPath(), " ", "-")+".1")
	text, err := manPage(c)
	if err == nil {
		err = os.WriteFile(file, text, 0o644)
	}
	if err != nil {
		return 0, fmt.Errorf("%s: cannot write: %w", file, err)
	}
	pages := 1
	for _, sub := range c.Commands() {
		if !sub.IsAvailableCommand() || sub.IsAdditionalHelpTopicCommand() {
			continue
		}
		n, err := writeManPages(sub, directory)
		if err != nil {
			return 0, err
		}
		pages += n
	}
	return pages, nil
}

// manPage returns the page of a command. The library writes a date into each page, which manPage
// removes: the page must not depend on the day.
func manPage(c *cobra.Command) ([]byte, error) {
	var page bytes.Buffer
	c.DisableAutoGenTag = true
	epoch := time.Unix(0, 0).UTC()
	if err := doc.GenMan(c, &doc.GenManHeader{Section: "1", Date: &epoch, Source: "Orlop OS", Manual: "orlopctl"}, &page); err != nil {
		return nil, err
	}
	return bytes.Replace(page.Bytes(), []byte(epoch.Format(`"Jan 2006"`)), []byte(`""`), 1), nil
}
