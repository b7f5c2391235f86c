package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
)

// completionTimeout is the longest time that the shell waits for completions from the machine.
const completionTimeout = 2 * time.Second

// completed returns the completion of a command with a single argument. ask returns the words,
// which it reads from the machine. There are no completions if the machine does not answer within
// completionTimeout. Completion does not renew the caller's certificate.
func completed(conn *connect.Connector, ask func(context.Context, *client.Client) ([]string, error)) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) (words []string, _ cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
		defer cancel()
		_, chosen, err := conn.Chosen()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		endpoint, err := chosen.Client()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		err = connect.Do(ctx, endpoint, func(c *client.Client) (err error) {
			words, err = ask(ctx, c)
			return err
		})
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		for i, word := range words {
			words[i] = format.Clean(word)
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

func topicNames(ctx context.Context, c *client.Client) ([]string, error) {
	answer, err := c.Machine.Get(ctx, &api.GetRequest{})
	return answer.GetTopics(), err
}

// partNames returns the names of the services and their components.
func partNames(ctx context.Context, c *client.Client) ([]string, error) {
	answer, err := c.Service.List(ctx, &api.ListServicesRequest{})
	var names []string
	for _, s := range answer.GetServices() {
		names = append(names, s.Name)
		for _, part := range s.Components {
			if part.Name != "" && part.Name != s.Name {
				names = append(names, part.Name)
			}
		}
	}
	return names, err
}

func serviceNames(ctx context.Context, c *client.Client) ([]string, error) {
	answer, err := c.Service.List(ctx, &api.ListServicesRequest{})
	var names []string
	for _, s := range answer.GetServices() {
		names = append(names, s.Name)
	}
	return names, err
}
