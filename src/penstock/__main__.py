from penstock.cli.main import main

main(prog_name="penstock")
