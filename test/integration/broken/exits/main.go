// Command exits ends at once. As init or machined it makes the kernel panic, as a service it never
// comes up.
package main

func main() {}
